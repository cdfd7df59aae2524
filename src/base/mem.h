/* Large page-aligned memory, in huge pages where the system gives them. Zeroed, committed on touch. */
#ifndef DS_BASE_MEM_H
#define DS_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>

void *ds_pages_alloc(size_t bytes); /* for weights: huge pages asked for; NULL: none left */
/* For KV rows: only touched pages count. Huge ones are read faster, but a row of each layer and head can take
 * the memory of all. */
void *ds_pages_reserve(size_t bytes, bool huge_pages);
void ds_pages_free(void *pages, size_t bytes); /* NULL is fine; bytes as given to alloc */

#endif
