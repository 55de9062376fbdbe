/* tables.h - the symbols that NCCL resolves in a network plugin. Version 12 is the plugin itself;
 * older_tables.c makes the others of it. */
#ifndef WEFT_NCCL_NET_TABLES_H
#define WEFT_NCCL_NET_TABLES_H

#include "nccl/nccl.h"

#define NCCL_EXPORT __attribute__((visibility("default")))

extern const struct nccl_net_v12 ncclNetPlugin_v12;
extern const struct nccl_net_v11 ncclNetPlugin_v11;
extern const struct nccl_net_v10 ncclNetPlugin_v10;
extern const struct nccl_net_v8 ncclNetPlugin_v8;

#endif
