/* Status codes and the error sentence that every fallible function of dspark fills in. */
#ifndef DSPARK_STATUS_H
#define DSPARK_STATUS_H

/* name, HTTP status, meaning: one list, from which every table of statuses is made */
#define DS_STATUS_MAP(X)                                                    \
    X(OK, 200, "ok")                                                        \
    X(INVALID, 400, "the arguments or the request are wrong")               \
    X(CANCELLED, 499, "the client went away or asked to stop")              \
    X(BAD_FILE, 500, "a model file is missing, damaged or unsupported")     \
    X(DEVICE, 500, "the device failed: reopen the engine")                  \
    X(INTERNAL, 500, "an operation failed that should not have")            \
    X(NO_MEMORY, 503, "out of host or device memory")

typedef enum {
#define X(name, http, meaning) DS_##name,
    DS_STATUS_MAP(X)
#undef X
} ds_status;

/* text: one sentence for a person: what was wrong, where, and what to do. Written on failure only. */
typedef struct {
    ds_status status;
    char text[512];
} ds_error;

#endif
