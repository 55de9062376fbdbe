/* unlinked.c - no backend beyond the core's own is linked into this object: they come from modules
 * (module.h). */
#include <stddef.h>

#include "transport/core/module.h"

const struct core_linked_backend core_linked_backends[] = {{NULL, NULL}};
