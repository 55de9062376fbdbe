/* coll_tables.h - the CollNet symbols. Version 12 is the plugin; coll_older_tables.c makes the others. */
#ifndef WEFT_NCCL_COLLNET_COLL_TABLES_H
#define WEFT_NCCL_COLLNET_COLL_TABLES_H

#include "nccl/nccl.h"
#include "nccl/net/tables.h"

extern const struct nccl_coll_v12 ncclCollNetPlugin_v12;
extern const struct nccl_coll_v11 ncclCollNetPlugin_v11;
extern const struct nccl_coll_v10 ncclCollNetPlugin_v10;
extern const struct nccl_coll_v8 ncclCollNetPlugin_v8;

#endif
