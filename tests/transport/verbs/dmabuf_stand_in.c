/* dmabuf_stand_in.c - registers memory files in the place of dma-bufs, for drivers without them (soft-RoCE).
 *
 * Linked into a module of the backend, it replaces one function of libibverbs. The driver pins the pages of
 * the file through a mapping of this function, and peers and local works address them by `iova`, as with a
 * dma-buf. So the address that the program passes on need not be accessible. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *domain, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                                 int access)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), skip = offset % page;
    char *view = mmap(NULL, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (view == MAP_FAILED) return NULL;
    struct ibv_mr *registered = ibv_reg_mr_iova(domain, view + skip, bytes, iova, access);
    const int reason = errno;
    munmap(view, bytes + skip); /* the driver holds the pages */
    errno = reason;
    return registered;
}
