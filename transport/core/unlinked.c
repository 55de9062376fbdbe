/* unlinked.c - this object links no backend beyond those of the core: the others are modules
 * (module.h). */
#include <stddef.h>

#include "transport/core/module.h"

const struct core_linked_backend core_linked_backends[] = {{NULL, NULL}};
