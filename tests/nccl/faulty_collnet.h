/* faulty_collnet.h - see faulty_plugin.c. */
#ifndef WEFT_TESTS_NCCL_FAULTY_COLLNET_H
#define WEFT_TESTS_NCCL_FAULTY_COLLNET_H

#include "nccl/nccl.h"

/* `table`: of the inner plugin; NULL: it has none. */
void faulty_collnet_open(const struct nccl_coll_v12 *table, const char *fault);

#endif
