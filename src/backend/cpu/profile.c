#include "backend/cpu/profile.h"

#include <string.h>

static bool same(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0; /* one literal may have several addresses */
}

void ds_profile_add(ds_profile *p, const char *part, const char *name, double seconds, double wait,
                    size_t bytes)
{
    int i = 0;
    while (i < p->n_rows && !(same(p->rows[i].name, name) && same(p->rows[i].part, part)))
        i++;
    if (i == DS_PROFILE_ROWS) {
        i--;
        p->rows[i].part = p->rows[i].name = "other";
    } else if (i == p->n_rows) {
        p->n_rows++;
        p->rows[i] = (ds_profile_row){ .part = part, .name = name };
    }
    ds_profile_row *row = &p->rows[i];
    row->calls++;
    row->seconds += seconds;
    row->wait += wait;
    row->bytes += (double)bytes;
}
