/* ucx_settings.c - see ucx_settings.h. */
#include "transport/ucx/ucx_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* Over tcp a message is cheapest in one UCX segment, and one of 256 KiB is cheaper than four of 64 KiB,
 * UCX's default: the segment size is raised, with space for headers (docs/transport-ucx.md). On other
 * lanes larger eager copies do not pay. */
enum { SEGMENT_TCP = 264 << 10, EAGER_SEGMENT = 256 << 10, EAGER_TCP = 64512, EAGER_OTHERS = 8192 };

/* Whether an element of the comma-separated `list` begins with `word`: "rc" matches rc_verbs. */
static bool has_control(const char *list, const char *control)
{
    for (const char *at = list; *at;) {
        if (*at != '^' && strncmp(at, control, strlen(control)) == 0) return true;
        at += strcspn(at, ",");
        if (*at == ',') at++;
    }
    return false;
}

static enum weft_status copy_text(char *out, size_t room, const char *text, const char *name,
                                  struct weft_error *error)
{
    if (strlen(text) >= room) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "transport %s has %zu characters, at most %zu fit: name fewer", name,
            strlen(text), room - 1);
    }
    snprintf(out, room, "%s", text);
    return WEFT_OK;
}

static enum weft_status read_lanes(const char *lanes, struct ucx_settings *settings, struct weft_error *error)
{
    if (!lanes || !lanes[0]) lanes = "tcp";
    const char *list = strcmp(lanes, "tcp") == 0   ? "tcp,self"
                       : strcmp(lanes, "shm") == 0 ? "sysv,cma,self"
                                                   : lanes;
    WEFT_TRY(copy_text(settings->list, sizeof settings->list, list, "lanes", error));
    snprintf(settings->lanes, sizeof settings->lanes, "%.60s", lanes);
    const char *user = getenv("UCX_TLS"); /* the list of the user counts */
    if (user) list = user;
    bool all = has_control(list, "all") || list[0] == '^';
    static const char *const shared[] = {"sysv", "posix", "sm", "shm", "mm", "cma", "knem", "xpmem"};
    static const char *const remote[] = {"rc", "ud", "dc", "ib"};
    settings->tcp = all || has_control(list, "tcp");
    settings->shared_memory = settings->verbs = all;
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        settings->shared_memory |= has_control(list, shared[i]);
    for (size_t i = 0; i < sizeof remote / sizeof *remote; i++)
        settings->verbs |= has_control(list, remote[i]);
    return WEFT_OK;
}

static bool port_is_free(unsigned port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return true; /* UCX reports the error */
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_free = bind(fd, (struct sockaddr *)&any, sizeof any) == 0;
    close(fd);
    return is_free;
}

/* UCX tries random ports of the range until one is free, without end if none is: checks first.
 * UCX_TCP_PORT_RANGE of the user takes precedence and is checked the same way. */
static enum weft_status read_ports(const char *ports, struct ucx_settings *settings, struct weft_error *error)
{
    const char *user = getenv("UCX_TCP_PORT_RANGE"),
               *name = user ? "UCX_TCP_PORT_RANGE=" : "transport ports ";
    if (user) ports = user;
    if (!ports || !ports[0] || !settings->tcp || strcmp(ports, "0") == 0) return WEFT_OK;
    unsigned first = 0, last = 0;
    int used = 0;
    if (sscanf(ports, "%5u-%5u%n", &first, &last, &used) != 2 || ports[used] || first == 0 || last < first ||
        last > 65535) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_INVALID, "%s\"%.40s\": a range is first-last, from 1 to 65535", name, ports);
    }
    unsigned wanted = 1, free_count = 0;
    for (const char *at = settings->devices; *at; at++) wanted += *at == ',';
    for (unsigned port = first; port <= last && free_count < wanted; port++) free_count += port_is_free(port);
    if (free_count < wanted) {
        return (enum weft_status)weft_error_set(
            error, WEFT_ERR_EXISTS,
            "of the TCP ports %u-%u %u are free, %u are needed (one for each device): "
            "widen %s or stop what holds them",
            first, last, free_count, wanted, user ? "UCX_TCP_PORT_RANGE" : "transport.ports");
    }
    if (!user) snprintf(settings->ports, sizeof settings->ports, "%u-%u", first, last);
    return WEFT_OK;
}

static const struct weft_key keys[] = {
    {.name = "eager_window", .type = WEFT_KEY_SCALED, .min = 64 << 10, .max = 1 << 30,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct ucx_settings, eager_window)},
    {.name = "fragment", .type = WEFT_KEY_SCALED, .min = 4 << 10, .max = 16 << 20,
     WEFT_KEY_AT(WEFT_FIELD_U64, struct ucx_settings, fragment_bytes)},
    {.name = "direct", .type = WEFT_KEY_CHOICE, .choices = "n|y",
     WEFT_KEY_AT(WEFT_FIELD_BOOL, struct ucx_settings, direct)},
    {0},
};

static enum weft_status read_tune(const char *tune, struct ucx_settings *settings, struct weft_error *error)
{
    struct weft_key_value item;
    while (tune && weft_key_value_next(&tune, "", &item)) {
        if (weft_key_value_set(keys, 0, &item, settings) == WEFT_KEY_STORED) continue;
        return (enum weft_status)weft_error_set(error, WEFT_ERR_INVALID,
                                                "transport tune \"%.*s\": ucx has eager_window=64K to 1G, "
                                                "fragment=4K to 16M and direct=y or n",
                                                (int)(item.item_bytes < 100 ? item.item_bytes : 100),
                                                item.item);
    }
    return WEFT_OK;
}

enum weft_status ucx_settings_read(const struct weft_transport_options *options,
                                   struct ucx_settings *settings_out, struct weft_error *error)
{
    struct ucx_settings settings = {.eager_window = 4 << 20, .fragment_bytes = EAGER_TCP, .direct = true};
    WEFT_TRY(read_lanes(options->lanes, &settings, error));
    if (settings.tcp && !settings.verbs && !settings.shared_memory && !getenv("UCX_TCP_RX_SEG_SIZE")) {
        settings.segment_bytes = SEGMENT_TCP;
        settings.fragment_bytes = EAGER_SEGMENT;
    }
    const char *devices = options->devices && options->devices[0] ? options->devices : "lo";
    WEFT_TRY(copy_text(settings.devices, sizeof settings.devices, devices, "devices", error));
    WEFT_TRY(read_ports(options->ports, &settings, error));
    WEFT_TRY(read_tune(options->tune, &settings, error));
    settings.eager_bytes_max = options->eager_bytes_max;
    if (settings.eager_bytes_max == 0)
        settings.eager_bytes_max = settings.segment_bytes            ? EAGER_SEGMENT
                                   : settings.tcp && !settings.verbs ? EAGER_TCP
                                                                     : EAGER_OTHERS;
    *settings_out = settings;
    return WEFT_OK;
}
