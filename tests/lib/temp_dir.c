/* temp_dir.c - see temp_dir.h. */
#include "tests/lib/temp_dir.h"

#include <arpa/inet.h>
#include <ftw.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/lib/check.h"

char *temp_dir_make(void)
{
    const char *parent = getenv("TMPDIR");
    char *path = NULL;
    assert_true(asprintf(&path, "%s/weft-test-XXXXXX", parent && parent[0] ? parent : "/tmp") > 0);
    assert_non_null(mkdtemp(path));
    return path;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    return remove(path);
}

void temp_dir_remove(char *path)
{
    if (!path) return;
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
    free(path);
}

uint16_t free_tcp_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &bytes), 0);
    close(fd);
    return ntohs(address.sin_port);
}
