/* A backend's file of repacked matrices, as matrix_open sees it. NULL is fine everywhere: no file. */
#ifndef DS_BACKEND_CPU_PACKS_H
#define DS_BACKEND_CPU_PACKS_H

#include "backend/cpu/internal.h"

/* Sets pages and slab of m (which is described, and has bytes) to what the file has for it. False: there is
 * no such file, or not in it. */
bool ds_packs_take(ds_packs *packs, ds_matrix *m, const char *name);
/* m will be in the file that pack_end writes, if it must. */
void ds_packs_add(ds_packs *packs, const ds_matrix *m, const char *name);
/* Whether there is a file, so that the weights behind it have been checked when it was written. */
bool ds_packs_checked(const ds_packs *packs);

#endif
