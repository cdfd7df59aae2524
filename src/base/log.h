/* Where messages go: the host decides. A zeroed ds_log is silent. */
#ifndef DS_BASE_LOG_H
#define DS_BASE_LOG_H

typedef enum { DS_LOG_DEBUG, DS_LOG_INFO, DS_LOG_WARN } ds_log_level;

typedef struct {
    void (*fn)(void *user, int level, const char *line); /* line: no newline, borrowed */
    void *user;
} ds_log;

void ds_say(const ds_log *log, ds_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
