/* driver.c - see driver.h. */
#include "tests/nccl/driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

bool driver_logs;
nccl_profiler_fn driver_profiler;
static atomic_int warnings;

int driver_warning_count(void)
{
    return warnings;
}

__attribute__((format(printf, 5, 6))) static void logger(enum nccl_log_level level, unsigned long subsystems,
                                                         const char *file, int line, const char *format, ...)
{
    if (level <= NCCL_LOG_LEVEL_WARN) warnings++;
    if (!driver_logs) return;
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
}

/* The table of the current version; all versions agree on these entries. */
#define EACH(driver, call)                 \
    ((driver)->v12   ? (driver)->v12->call \
     : (driver)->v11 ? (driver)->v11->call \
     : (driver)->v10 ? (driver)->v10->call \
                     : (driver)->v8->call)

bool driver_open(struct driver *driver, const char *name, int version_max)
{
    char path[256];
    *driver = (struct driver){.library = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
    if (!driver->library && !strchr(name, '/')) {
        snprintf(path, sizeof path, "libnccl-net-%s.so", name);
        driver->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    if (!driver->library) {
        fprintf(stderr, "%s: %s\n", name, dlerror());
        return false;
    }
    for (int version = version_max > 0 ? version_max : 12; version >= 8 && driver->version == 0; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        const void *table = dlsym(driver->library, symbol);
        if (!table || version == 9) continue;
        driver->version = version;
        if (version == 12) driver->v12 = table;
        else if (version == 11) driver->v11 = table;
        else if (version == 10) driver->v10 = table;
        else driver->v8 = table;
    }
    if (driver->version == 0) fprintf(stderr, "%s has no table of a version up to %d\n", name, version_max);
    return driver->version != 0;
}

void driver_close(struct driver *driver)
{
    if (driver->library) dlclose(driver->library);
    *driver = (struct driver){0};
}

const char *driver_name(const struct driver *driver)
{
    return EACH(driver, name);
}

#define MISSING(entry) (!EACH(driver, entry) && (*missing_out = #entry))
bool driver_is_complete(const struct driver *driver, const char **missing_out)
{
    *missing_out = NULL;
    if (MISSING(name) || MISSING(devices) || MISSING(accept) || MISSING(reg_mr) || MISSING(dereg_mr) ||
        MISSING(iflush) || MISSING(test) || MISSING(close_send) || MISSING(close_recv) ||
        MISSING(close_listen))
        return false;
    bool has_rest = driver->v12 ? driver->v12->init && driver->v12->get_properties && driver->v12->listen &&
                                      driver->v12->connect && driver->v12->isend && driver->v12->irecv &&
                                      driver->v12->finalize
                    : driver->v11 ? driver->v11->init && driver->v11->get_properties && driver->v11->listen &&
                                        driver->v11->connect && driver->v11->isend && driver->v11->irecv &&
                                        driver->v11->finalize
                    : driver->v10 ? driver->v10->init && driver->v10->get_properties && driver->v10->listen &&
                                        driver->v10->connect && driver->v10->isend && driver->v10->irecv
                                  : driver->v8->init && driver->v8->get_properties && driver->v8->listen &&
                                        driver->v8->connect && driver->v8->isend && driver->v8->irecv;
    if (!has_rest) *missing_out = "init, get_properties, listen, connect, isend, irecv or finalize";
    return has_rest;
}

enum nccl_result driver_init(struct driver *driver, uint64_t comm_id, void **context_out)
{
    struct nccl_config_v12 v12 = {NCCL_TRAFFIC_CLASS_NONE};
    struct nccl_config_v11 v11 = {NCCL_TRAFFIC_CLASS_NONE};
    if (driver->v12) return driver->v12->init(context_out, comm_id, &v12, logger, driver_profiler);
    if (driver->v11) return driver->v11->init(context_out, comm_id, &v11, logger, driver_profiler);
    *context_out = driver;
    if (driver->has_begun) return NCCL_RESULT_SUCCESS;
    driver->has_begun = true;
    return driver->v10 ? driver->v10->init(logger, driver_profiler) : driver->v8->init(logger);
}

enum nccl_result driver_finalize(struct driver *driver, void *context)
{
    if (driver->v12) return driver->v12->finalize(context);
    return driver->v11 ? driver->v11->finalize(context) : NCCL_RESULT_SUCCESS;
}

enum nccl_result driver_devices(struct driver *driver, int *count_out)
{
    return EACH(driver, devices(count_out));
}

/* Copies the fields that the version has. */
#define COPY_COMMON(from)                                                                   \
    do {                                                                                    \
        out->name = (from).name, out->pci_path = (from).pci_path, out->guid = (from).guid;  \
        out->pointers = (from).pointers, out->reg_is_global = (from).reg_is_global;         \
        out->speed = (from).speed, out->port = (from).port, out->latency = (from).latency;  \
        out->max_comms = (from).max_comms, out->max_recvs = (from).max_recvs;               \
        out->device_type = (from).device_type, out->device_version = (from).device_version; \
    } while (0)

enum nccl_result driver_properties(struct driver *driver, int device, struct nccl_properties_v12 *out)
{
    struct nccl_properties_v11 v11 = {0};
    struct nccl_properties_v10 v10 = {0};
    struct nccl_properties_v8 v8 = {0};
    enum nccl_result result;
    memset(out, 0, sizeof *out);
    if (driver->v12) return driver->v12->get_properties(device, out);
    out->max_p2p_bytes = out->max_coll_bytes = NCCL_NET_BYTES_MAX;
    if (driver->v11) {
        result = driver->v11->get_properties(device, &v11);
        COPY_COMMON(v11);
        out->max_p2p_bytes = v11.max_p2p_bytes, out->max_coll_bytes = v11.max_coll_bytes;
    } else if (driver->v10) {
        result = driver->v10->get_properties(device, &v10);
        COPY_COMMON(v10);
        out->max_p2p_bytes = v10.max_p2p_bytes, out->max_coll_bytes = v10.max_coll_bytes;
    } else {
        result = driver->v8->get_properties(device, &v8);
        COPY_COMMON(v8);
    }
    return result;
}

enum nccl_result driver_listen(struct driver *driver, void *context, int device, void *handle, void **out)
{
    if (driver->v12) return driver->v12->listen(context, device, handle, out);
    if (driver->v11) return driver->v11->listen(context, device, handle, out);
    return driver->v10 ? driver->v10->listen(device, handle, out) : driver->v8->listen(device, handle, out);
}

enum nccl_result driver_connect(struct driver *driver, void *context, int device, void *handle, void **out)
{
    struct nccl_device_handle *unused = NULL;
    struct nccl_config_v10 config = {NCCL_TRAFFIC_CLASS_NONE};
    if (driver->v12) return driver->v12->connect(context, device, handle, out, &unused);
    if (driver->v11) return driver->v11->connect(context, device, handle, out, &unused);
    if (driver->v10) return driver->v10->connect(device, &config, handle, out, &unused);
    return driver->v8->connect(device, handle, out, &unused);
}

enum nccl_result driver_accept(struct driver *driver, void *listener, void **out)
{
    struct nccl_device_handle *unused = NULL;
    return EACH(driver, accept(listener, out, &unused));
}

enum nccl_result driver_reg(struct driver *driver, void *comm, void *data, size_t bytes, void **out)
{
    return EACH(driver, reg_mr(comm, data, bytes, NCCL_POINTER_HOST, out));
}

enum nccl_result driver_reg_dmabuf(struct driver *driver, void *comm, void *data, size_t bytes,
                                   uint64_t offset, int fd, void **out)
{
    if (driver->v12 && !driver->v12->reg_mr_dmabuf) return NCCL_RESULT_INTERNAL; /* NCCL does not call it */
    return EACH(driver, reg_mr_dmabuf(comm, data, bytes, NCCL_POINTER_CUDA, offset, fd, out));
}

enum nccl_result driver_dereg(struct driver *driver, void *comm, void *memory)
{
    return EACH(driver, dereg_mr(comm, memory));
}

enum nccl_result driver_isend(struct driver *driver, void *comm, void *data, size_t bytes, int tag,
                              void *memory, void *parent, void **request)
{
    if (driver->v12) return driver->v12->isend(comm, data, bytes, tag, memory, parent, request);
    if (driver->v11) return driver->v11->isend(comm, data, bytes, tag, memory, parent, request);
    if (driver->v10) return driver->v10->isend(comm, data, bytes, tag, memory, parent, request);
    return driver->v8->isend(comm, data, (int)bytes, tag, memory, request);
}

enum nccl_result driver_irecv(struct driver *driver, void *comm, int count, void **data, size_t *bytes,
                              int *tags, void **memories, void **parents, void **request)
{
    int narrow[NCCL_RECVS_LIMIT];
    if (driver->v12) return driver->v12->irecv(comm, count, data, bytes, tags, memories, parents, request);
    if (driver->v11) return driver->v11->irecv(comm, count, data, bytes, tags, memories, parents, request);
    if (driver->v10) return driver->v10->irecv(comm, count, data, bytes, tags, memories, parents, request);
    for (int i = 0; i < count; i++) narrow[i] = (int)bytes[i];
    return driver->v8->irecv(comm, count, data, narrow, tags, memories, request);
}

enum nccl_result driver_iflush(struct driver *driver, void *comm, int count, void **data, int *bytes,
                               void **memories, void **request)
{
    return EACH(driver, iflush(comm, count, data, bytes, memories, request));
}

enum nccl_result driver_test(struct driver *driver, void *request, int *done, int *bytes)
{
    return EACH(driver, test(request, done, bytes));
}

enum nccl_result driver_close_send(struct driver *driver, void *comm)
{
    return EACH(driver, close_send(comm));
}

enum nccl_result driver_close_recv(struct driver *driver, void *comm)
{
    return EACH(driver, close_recv(comm));
}

enum nccl_result driver_close_listen(struct driver *driver, void *listener)
{
    return EACH(driver, close_listen(listener));
}
