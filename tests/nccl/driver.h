/* driver.h - opens a network plugin as NCCL does and calls any version of its table by one set of functions.
 *
 * Versions 8 and 10 have one context per process: the driver calls their init once for each library, as
 * NCCL's adapters do, and its contexts are then markers. */
#ifndef WEFT_TESTS_NCCL_DRIVER_H
#define WEFT_TESTS_NCCL_DRIVER_H

#include <stdbool.h>

#include "nccl/nccl.h"

struct driver {
    void *library;
    int version; /* 8, 10, 11 or 12 */
    bool has_begun;
    const struct nccl_net_v8 *v8;
    const struct nccl_net_v10 *v10;
    const struct nccl_net_v11 *v11;
    const struct nccl_net_v12 *v12;
};

/* Opens `name` as given; if that fails and it has no '/', libnccl-net-NAME.so. Takes the newest version not
 * above version_max (0: any). False: a sentence is on stderr. */
bool driver_open(struct driver *driver, const char *name, int version_max);
void driver_close(struct driver *driver); /* dlclose */
const char *driver_name(const struct driver *driver);
/* False: an entry that NCCL calls is NULL; *missing_out is its name. */
bool driver_is_complete(const struct driver *driver, const char **missing_out);

/* Lines that the plugin has logged as warnings since the start of the process. */
int driver_warning_count(void);
extern bool driver_logs; /* print the plugin's log to stderr */
extern nccl_profiler_fn driver_profiler; /* given to init */

enum nccl_result driver_init(struct driver *driver, uint64_t comm_id, void **context_out);
enum nccl_result driver_finalize(struct driver *driver, void *context);
enum nccl_result driver_devices(struct driver *driver, int *count_out);
enum nccl_result driver_properties(struct driver *driver, int device, struct nccl_properties_v12 *out);
enum nccl_result driver_listen(struct driver *driver, void *context, int device, void *handle, void **out);
enum nccl_result driver_connect(struct driver *driver, void *context, int device, void *handle, void **out);
enum nccl_result driver_accept(struct driver *driver, void *listener, void **out);
enum nccl_result driver_reg(struct driver *driver, void *comm, void *data, size_t bytes, void **out);
/* CUDA memory by its dma-buf. */
enum nccl_result driver_reg_dmabuf(struct driver *driver, void *comm, void *data, size_t bytes,
                                   uint64_t offset, int fd, void **out);
enum nccl_result driver_dereg(struct driver *driver, void *comm, void *memory);
enum nccl_result driver_isend(struct driver *driver, void *comm, void *data, size_t bytes, int tag,
                              void *memory, void *parent, void **request);
enum nccl_result driver_irecv(struct driver *driver, void *comm, int count, void **data, size_t *bytes,
                              int *tags, void **memories, void **parents, void **request);
enum nccl_result driver_iflush(struct driver *driver, void *comm, int count, void **data, int *bytes,
                               void **memories, void **request);
enum nccl_result driver_test(struct driver *driver, void *request, int *done, int *bytes);
enum nccl_result driver_close_send(struct driver *driver, void *comm);
enum nccl_result driver_close_recv(struct driver *driver, void *comm);
enum nccl_result driver_close_listen(struct driver *driver, void *listener);

#endif
