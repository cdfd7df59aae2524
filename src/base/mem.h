/* Large page-aligned memory, in huge pages where the system gives them. Zeroed, committed on touch. */
#ifndef DS_BASE_MEM_H
#define DS_BASE_MEM_H

#include <stddef.h>

void *ds_pages_alloc(size_t bytes);           /* for weights: huge pages asked for; NULL: none left */
void *ds_pages_reserve(size_t bytes);         /* for KV rows: small pages, only touched ones count */
void ds_pages_free(void *pages, size_t bytes); /* NULL is fine; bytes as given to alloc */

#endif
