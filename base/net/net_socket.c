/* net_socket.c - converts addresses from and to text; opens listening sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

#include "base/os/system_limit.h"
#include "base/net/net_internal.h"

enum weft_status net_address_resolve(const char *host, uint16_t port, struct net_address *address_out,
                                struct weft_error *error)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *found = NULL;
    char service[8];
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host[0] ? host : "0.0.0.0", service, &hints, &found);
    if (rc == EAI_MEMORY)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory to look up %.200s", host);
    if (rc != 0 || !found)
        return weft_error_set(error, WEFT_ERR_NOT_FOUND, "the address %.200s is not known: %s", host,
                              rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    memcpy(&address_out->storage, found->ai_addr, found->ai_addrlen);
    address_out->bytes = found->ai_addrlen;
    freeaddrinfo(found);
    return WEFT_OK;
}

static uint16_t port_of(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)(const void *)address)->sin6_port);
    if (address->sa_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
    return 0;
}

void net_address_name(const struct sockaddr *address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    bool is_v6 = address->sa_family == AF_INET6;
    if (is_v6)
        inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr, host,
                  sizeof host);
    else if (address->sa_family == AF_INET)
        inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)address)->sin_addr, host, sizeof host);
    snprintf(text, bytes, is_v6 ? "[%s]:%u" : "%s:%u", host, port_of(address));
}

static enum weft_status bind_failed(const char *host, uint16_t port, int reason, struct weft_error *error)
{
    if (reason == EADDRINUSE)
        return weft_error_set(error, WEFT_ERR_EXISTS,
                              "port %u on %.200s is already in use; choose another, or 0 for a free one",
                              port, host);
    if (reason == EADDRNOTAVAIL)
        return weft_error_set(error, WEFT_ERR_NOT_FOUND,
                              "%.200s is not an address of this host; choose one that is", host);
    if (reason == EMFILE || reason == ENFILE)
        return weft_limit_error(error, "a listening socket", reason, "cannot listen on port %u of %.200s",
                                port, host);
    return weft_error_set(error, WEFT_ERR_IO, "cannot listen on port %u of %.200s: %s", port, host,
                          strerror(reason));
}

enum weft_status net_bind(const char *host, uint16_t port, int *fd_out, uint16_t *port_out,
                          struct weft_error *error)
{
    struct net_address address;
    WEFT_TRY(net_address_resolve(host, port, &address, error));
    int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return bind_failed(host, port, errno, error);
    /* Connections in TIME_WAIT of an earlier listener must not block the port. */
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    struct sockaddr *name = (struct sockaddr *)&address.storage;
    /* Two sockets with SO_REUSEADDR may bind one port until one listens, so bind alone does not detect a port
     * in use. */
    if (bind(fd, name, address.bytes) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, name, &address.bytes) != 0) {
        int reason = errno;
        close(fd);
        return bind_failed(host, port, reason, error);
    }
    *fd_out = fd;
    *port_out = port_of(name);
    return WEFT_OK;
}
