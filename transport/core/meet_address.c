/* meet_address.c - where an endpoint listens, as a blob that travels through the control plane.
 *
 *     version 1 | family (1 Unix, 4, 6) | port 2 | id 4 | random name 16, or address 4 or 16      (little-endian) */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <string.h>

#include "transport/core/meet_internal.h"

enum { ADDRESS_VERSION = 1, FAMILY_UNIX = 1, FAMILY_V4 = 4, FAMILY_V6 = 6, ADDRESS_HEAD = 8 };

static struct sockaddr_in *v4(const struct meet_where *where)
{
    return (struct sockaddr_in *)(void *)&where->storage;
}
static struct sockaddr_in6 *v6(const struct meet_where *where)
{
    return (struct sockaddr_in6 *)(void *)&where->storage;
}

static void set_unix(struct meet_where *where, const uint8_t name[MEET_NAME_BYTES])
{
    struct sockaddr_un *un = (struct sockaddr_un *)(void *)&where->storage;
    char text[sizeof un->sun_path];
    size_t at = (size_t)snprintf(text, sizeof text, "weft-");
    for (size_t i = 0; i < MEET_NAME_BYTES; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%02x", name[i]);
    *un = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(un->sun_path + 1, text, at); /* the zero byte in front: abstract, no file is left behind */
    where->bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + at);
}

static bool set_ip(struct meet_where *where, const char *host, uint16_t port)
{
    if (inet_pton(AF_INET, host, &v4(where)->sin_addr) == 1) {
        where->storage.ss_family = AF_INET;
        v4(where)->sin_port = htons(port);
        where->bytes = sizeof(struct sockaddr_in);
        return true;
    }
    if (inet_pton(AF_INET6, host, &v6(where)->sin6_addr) != 1) return false;
    where->storage.ss_family = AF_INET6;
    v6(where)->sin6_port = htons(port);
    where->bytes = sizeof(struct sockaddr_in6);
    return true;
}

bool meet_where_is_local(const struct meet_where *where)
{
    if (where->storage.ss_family == AF_INET) return ntohl(v4(where)->sin_addr.s_addr) >> 24 == 127;
    if (where->storage.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&v6(where)->sin6_addr);
    return where->storage.ss_family == AF_UNIX;
}

static bool is_wildcard(const struct meet_where *where)
{
    if (where->storage.ss_family == AF_INET) return v4(where)->sin_addr.s_addr == htonl(INADDR_ANY);
    return where->storage.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6(where)->sin6_addr);
}

enum weft_status meet_where_local(struct meet *meet, uint16_t port, struct meet_where *where_out,
                                  struct weft_error *error)
{
    *where_out = (struct meet_where){.id = meet->options.id};
    if (meet->options.family == MEET_UNIX) {
        uint8_t name[MEET_NAME_BYTES];
        weft_random_bytes(meet->env, name, sizeof name);
        set_unix(where_out, name);
        return WEFT_OK;
    }
    const char *host = meet->options.bind_host;
    if (!set_ip(where_out, host, port))
        return weft_error_set(
            error, WEFT_ERR_INVALID,
            "'%.100s' is no numeric address to listen on; give one of this host, such as 10.0.0.7", host);
    if (!meet->self.has_secret && !meet_where_is_local(where_out))
        return weft_error_set(error, WEFT_ERR_AUTH,
                              "listening on %.100s is open to other hosts, and without a job secret anybody "
                              "there could join; set one",
                              host);
    if (is_wildcard(where_out) && !meet->options.advertise)
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "%.100s is every address of this host; say which one others should connect to",
                              host);
    return WEFT_OK;
}

void meet_address_encode(struct meet *meet, const struct meet_where *local)
{
    struct meet_where where = *local;
    uint16_t port = 0;
    const void *tail;
    size_t tail_bytes;
    uint8_t family, name[MEET_NAME_BYTES];
    if (where.storage.ss_family == AF_UNIX) {
        const char *hex = ((struct sockaddr_un *)(void *)&where.storage)->sun_path + 1 + strlen("weft-");
        for (size_t i = 0; i < sizeof name; i++) {
            unsigned byte = 0;
            sscanf(hex + 2 * i, "%2x", &byte);
            name[i] = (uint8_t)byte;
        }
        family = FAMILY_UNIX, tail = name, tail_bytes = sizeof name;
    } else {
        port = ntohs(where.storage.ss_family == AF_INET ? v4(&where)->sin_port : v6(&where)->sin6_port);
        if (meet->options.advertise) set_ip(&where, meet->options.advertise, port);
        bool is_v4 = where.storage.ss_family == AF_INET;
        family = is_v4 ? FAMILY_V4 : FAMILY_V6;
        tail = is_v4 ? (const void *)&v4(&where)->sin_addr : (const void *)&v6(&where)->sin6_addr;
        tail_bytes = is_v4 ? 4 : 16;
    }
    const uint32_t id = meet->options.id;
    const uint8_t head[ADDRESS_HEAD] = {ADDRESS_VERSION,     family,
                                        (uint8_t)port,       (uint8_t)(port >> 8),
                                        (uint8_t)id,         (uint8_t)(id >> 8),
                                        (uint8_t)(id >> 16), (uint8_t)(id >> 24)};
    memcpy(meet->address, head, sizeof head);
    memcpy(meet->address + sizeof head, tail, tail_bytes);
    meet->address_bytes = sizeof head + tail_bytes;
}

enum weft_status meet_address_decode(const struct meet *meet, const void *address, size_t bytes,
                                     struct meet_where *where_out)
{
    const uint8_t *data = address;
    *where_out = (struct meet_where){0};
    if (bytes < ADDRESS_HEAD || data[0] != ADDRESS_VERSION) return WEFT_ERR_MALFORMED;
    uint16_t port = (uint16_t)(data[2] | data[3] << 8);
    where_out->id = data[4] | (uint32_t)data[5] << 8 | (uint32_t)data[6] << 16 | (uint32_t)data[7] << 24;
    const uint8_t *tail = data + ADDRESS_HEAD;
    bytes -= ADDRESS_HEAD;
    if ((data[1] == FAMILY_UNIX) != (meet->options.family == MEET_UNIX)) return WEFT_ERR_MALFORMED;
    if (data[1] == FAMILY_UNIX && bytes == MEET_NAME_BYTES && port == 0) {
        set_unix(where_out, tail);
    } else if (data[1] == FAMILY_V4 && bytes == 4 && port > 0) {
        where_out->storage.ss_family = AF_INET;
        memcpy(&v4(where_out)->sin_addr, tail, 4);
        v4(where_out)->sin_port = htons(port);
        where_out->bytes = sizeof(struct sockaddr_in);
    } else if (data[1] == FAMILY_V6 && bytes == 16 && port > 0) {
        where_out->storage.ss_family = AF_INET6;
        memcpy(&v6(where_out)->sin6_addr, tail, 16);
        v6(where_out)->sin6_port = htons(port);
        where_out->bytes = sizeof(struct sockaddr_in6);
    } else {
        return WEFT_ERR_MALFORMED;
    }
    return WEFT_OK;
}

void meet_where_name(const struct meet_where *where, char *text, size_t bytes)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (where->storage.ss_family == AF_INET) {
        inet_ntop(AF_INET, &v4(where)->sin_addr, host, sizeof host);
        snprintf(text, bytes, "%s:%u", host, ntohs(v4(where)->sin_port));
    } else if (where->storage.ss_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6(where)->sin6_addr, host, sizeof host);
        snprintf(text, bytes, "[%s]:%u", host, ntohs(v6(where)->sin6_port));
    } else {
        snprintf(text, bytes, "this host");
    }
}
