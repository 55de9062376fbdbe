/* socket_address.c - where an endpoint listens, as a blob that travels through the control plane.
 *
 *   version 1 | family (1 Unix, 4, 6) | port 2 | id 4 | random name 16, or address 4 or 16; little endian */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>

#include "transport/bootstrap/bootstrap_internal.h"

enum { ADDRESS_VERSION = 1, FAMILY_UNIX = 1, FAMILY_V4 = 4, FAMILY_V6 = 6, ADDRESS_HEAD = 8 };

static struct sockaddr_in *v4(const struct socket_address *socket_address)
{
    return (struct sockaddr_in *)(void *)&socket_address->storage;
}
static struct sockaddr_in6 *v6(const struct socket_address *socket_address)
{
    return (struct sockaddr_in6 *)(void *)&socket_address->storage;
}

static void set_unix(struct socket_address *socket_address, const uint8_t name[BOOTSTRAP_NAME_BYTES])
{
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)&socket_address->storage;
    char text[sizeof un->sun_path];
    size_t at = (size_t)snprintf(text, sizeof text, "weft-");
    for (size_t i = 0; i < BOOTSTRAP_NAME_BYTES; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%02x", name[i]);
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(un->sun_path + 1, text, at); /* a leading zero byte: abstract name, no file in the filesystem */
    socket_address->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + at);
}

static bool set_ip(struct socket_address *socket_address, const char *host, uint16_t port)
{
    if (inet_pton(AF_INET, host, &v4(socket_address)->sin_addr) == 1) {
        socket_address->storage.ss_family = AF_INET;
        v4(socket_address)->sin_port = htons(port);
        socket_address->bytes = sizeof(struct sockaddr_in);
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6(socket_address)->sin6_addr) != 1) return false;
    socket_address->storage.ss_family = AF_INET6;
    v6(socket_address)->sin6_port = htons(port);
    socket_address->bytes = sizeof(struct sockaddr_in6);
    return true;
}

bool socket_address_is_local(const struct socket_address *socket_address)
{
    if (socket_address->storage.ss_family == AF_INET)
        return ntohl(v4(socket_address)->sin_addr.s_addr) >> 24 == 127;
    if (socket_address->storage.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&v6(socket_address)->sin6_addr);
    return socket_address->storage.ss_family == AF_UNIX;
}

static bool is_wildcard(const struct socket_address *socket_address)
{
    if (socket_address->storage.ss_family == AF_INET)
        return v4(socket_address)->sin_addr.s_addr == htonl(INADDR_ANY);
    return socket_address->storage.ss_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&v6(socket_address)->sin6_addr);
}

enum weft_status socket_address_local(struct bootstrap *bootstrap, uint16_t port,
                                      struct socket_address *socket_address_out, struct weft_error *error)
{
    *socket_address_out = (struct socket_address){.id = bootstrap->options.id};
    if (bootstrap->options.family == BOOTSTRAP_UNIX) {
        uint8_t name[BOOTSTRAP_NAME_BYTES];
        weft_random_bytes(bootstrap->env, name, sizeof name);
        set_unix(socket_address_out, name);
        return WEFT_OK;
    }
    const char *host = bootstrap->options.bind_host;
    if (!set_ip(socket_address_out, host, port))
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "'%.100s' is no numeric address to listen on; give one of this host, such as 10.0.0.7", host);
    if (!bootstrap->self.has_secret && !socket_address_is_local(socket_address_out))
        return weft_error_set(error, WEFT_ERR_AUTH,
                              "listening on %.100s is open to other hosts, and without a job secret anybody "
                              "there could join; set one",
                              host);
    if (is_wildcard(socket_address_out) && !bootstrap->options.advertise)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%.100s is every address of this host; name the one that peers connect to",
                              host);
    return WEFT_OK;
}

void bootstrap_address_encode(struct bootstrap *bootstrap, const struct socket_address *local)
{
    struct socket_address socket_address = *local;
    uint16_t port = 0;
    const void *tail;
    size_t tail_bytes;
    uint8_t family, name[BOOTSTRAP_NAME_BYTES];
    if (socket_address.storage.ss_family == AF_UNIX) {
        const char *hex =
            ((struct sockaddr_un *)(void *)&socket_address.storage)->sun_path + 1 + strlen("weft-");
        for (size_t i = 0; i < sizeof name; i++) {
            unsigned byte = 0;
            sscanf(hex + 2 * i, "%2x", &byte);
            name[i] = (uint8_t)byte;
        }
        family = FAMILY_UNIX, tail = name, tail_bytes = sizeof name;
    } else {
        port = ntohs(socket_address.storage.ss_family == AF_INET ? v4(&socket_address)->sin_port
                                                                 : v6(&socket_address)->sin6_port);
        if (bootstrap->options.advertise) set_ip(&socket_address, bootstrap->options.advertise, port);
        bool is_v4 = socket_address.storage.ss_family == AF_INET;
        family = is_v4 ? FAMILY_V4 : FAMILY_V6;
        tail = is_v4 ? (const void *)&v4(&socket_address)->sin_addr
                     : (const void *)&v6(&socket_address)->sin6_addr;
        tail_bytes = is_v4 ? 4 : 16;
    }
    const uint32_t id = bootstrap->options.id;
    const uint8_t head[ADDRESS_HEAD] = {ADDRESS_VERSION,     family,
                                        (uint8_t)port,       (uint8_t)(port >> 8),
                                        (uint8_t)id,         (uint8_t)(id >> 8),
                                        (uint8_t)(id >> 16), (uint8_t)(id >> 24)};
    memcpy(bootstrap->own_address.address, head, sizeof head);
    memcpy(bootstrap->own_address.address + sizeof head, tail, tail_bytes);
    bootstrap->own_address.address_bytes = sizeof head + tail_bytes;
}

enum weft_status bootstrap_address_decode(const struct bootstrap *bootstrap, const void *address,
                                          size_t bytes, struct socket_address *socket_address_out)
{
    const uint8_t *data = address;
    *socket_address_out = (struct socket_address){0};
    if (bytes < ADDRESS_HEAD || data[0] != ADDRESS_VERSION) return WEFT_ERR_MALFORMED;
    uint16_t port = (uint16_t)(data[2] | data[3] << 8);
    socket_address_out->id =
        data[4] | (uint32_t)data[5] << 8 | (uint32_t)data[6] << 16 | (uint32_t)data[7] << 24;
    const uint8_t *tail = data + ADDRESS_HEAD;
    bytes -= ADDRESS_HEAD;
    if ((data[1] == FAMILY_UNIX) != (bootstrap->options.family == BOOTSTRAP_UNIX)) return WEFT_ERR_MALFORMED;
    if (data[1] == FAMILY_UNIX && bytes == BOOTSTRAP_NAME_BYTES && port == 0) {
        set_unix(socket_address_out, tail);
    } else if (data[1] == FAMILY_V4 && bytes == 4 && port > 0) {
        socket_address_out->storage.ss_family = AF_INET;
        memcpy(&v4(socket_address_out)->sin_addr, tail, 4);
        v4(socket_address_out)->sin_port = htons(port);
        socket_address_out->bytes = sizeof(struct sockaddr_in);
    } else if (data[1] == FAMILY_V6 && bytes == 16 && port > 0) {
        socket_address_out->storage.ss_family = AF_INET6;
        memcpy(&v6(socket_address_out)->sin6_addr, tail, 16);
        v6(socket_address_out)->sin6_port = htons(port);
        socket_address_out->bytes = sizeof(struct sockaddr_in6);
    } else {
        return WEFT_ERR_MALFORMED;
    }
    return WEFT_OK;
}

void socket_address_name(const struct socket_address *socket_address, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (socket_address->storage.ss_family == AF_INET) {
        inet_ntop(AF_INET, &v4(socket_address)->sin_addr, host, sizeof host);
        snprintf(text, bytes, "%s:%u", host, ntohs(v4(socket_address)->sin_port));
    } else if (socket_address->storage.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6(socket_address)->sin6_addr, host, sizeof host);
        snprintf(text, bytes, "[%s]:%u", host, ntohs(v6(socket_address)->sin6_port));
    } else {
        snprintf(text, bytes, "this host");
    }
}
