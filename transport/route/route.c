/* route.c - the life of the composite endpoint: opened over every backend that works, progressed, slept on as one. */
#include "transport/route/route.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/route/route_ops.h"

/* ---- settings ---- */

struct settings {
    uint8_t order[ROUTE_KINDS]; /* kinds to open */
    uint32_t count;
    bool use_given;             /* the order is the user's */
    char links[256];
    char tunes[ROUTE_KINDS][ROUTE_TUNE_BYTES]; /* of the parts */
    struct route_devices devices;
};

static int kind_named(const char *name, size_t length)
{
    for (int kind = 0; kind < ROUTE_KINDS; kind++)
        if (strlen(route_kind_names[kind]) == length && strncmp(name, route_kind_names[kind], length) == 0) return kind;
    return -1;
}

static bool read_order(struct settings *settings, const char *text, size_t length)
{
    uint32_t seen = 0;
    settings->count = 0;
    for (const char *end = text + length; text < end;) {
        size_t word = strcspn(text, "+,");
        int kind = kind_named(text, word);
        if (kind < 0 || seen & 1u << kind) return false;
        seen |= 1u << kind;
        settings->order[settings->count++] = (uint8_t)kind;
        text += word + (text + word < end);
    }
    return settings->count > 0;
}

/* "shm.cma=off" goes to shm as "cma=off". */
static bool pass_on(struct settings *settings, const char *item, size_t length)
{
    const char *dot = memchr(item, '.', length);
    int kind = dot ? kind_named(item, (size_t)(dot - item)) : -1;
    if (kind < 0) return false;
    char *tune = settings->tunes[kind];
    size_t at = strlen(tune), rest = length - (size_t)(dot + 1 - item);
    if (at + rest + 2 > ROUTE_TUNE_BYTES) return false;
    snprintf(tune + at, ROUTE_TUNE_BYTES - at, "%s%.*s", at > 0 ? "," : "", (int)rest, dot + 1);
    return true;
}

static enum weft_status read_settings(struct settings *settings, const char *text, struct weft_error *error)
{
    *settings = (struct settings){.count = ROUTE_KINDS};
    for (int kind = 0; kind < ROUTE_KINDS; kind++) settings->order[kind] = (uint8_t)kind;
    while (text && *text) {
        size_t length = strcspn(text, ",");
        bool right;
        if (strncmp(text, "use=", 4) == 0) {
            right = settings->use_given = read_order(settings, text + 4, length - 4);
        } else if (strncmp(text, "links=", 6) == 0) {
            right = length > 6 && length - 6 < sizeof settings->links;
            if (right) snprintf(settings->links, sizeof settings->links, "%.*s", (int)(length - 6), text + 6);
        } else {
            right = pass_on(settings, text, length);
        }
        if (!right) {
            return weft_error_set(error, WEFT_ERR_INVALID,
                                  "auto has no setting \"%.*s\": it has use=shm+verbs+ucx (any of them, most wanted first), links=FILE, "
                                  "and those of its parts, such as shm.cma=off", (int)length, text);
        }
        text += length + (text[length] == ',');
    }
    return WEFT_OK;
}

/* ---- where this is ---- */

static uint64_t hash(const void *data, size_t bytes)
{
    const uint64_t sum = weft_fnv_bytes(WEFT_FNV_BASIS, data, bytes);
    return sum ? sum : 1;
}

static uint64_t host_mark(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t bytes = read(fd, text, sizeof text);
    close(fd);
    return bytes > 0 ? hash(text, (size_t)bytes) : 0;
}

/* Of those who can meet on a Unix socket of this host: a network namespace, and one user of it while nobody proves a secret. */
static uint64_t space_mark(bool secret)
{
    struct stat about;
    if (stat("/proc/self/ns/net", &about) != 0) return 0;
    uint64_t place[2] = {about.st_ino, secret ? UINT64_MAX : geteuid()};
    return hash(place, sizeof place);
}

/* A table that is named must be readable: it was made to be heeded. */
static enum weft_status read_links(struct route *route, const char *path, struct weft_error *error)
{
    char *text;
    size_t bytes;
    if (path[0] == 0) return WEFT_OK;
    struct weft_env *env = route->whole->env;
    WEFT_TRY(weft_link_table_load(env, path, &route->links, error));
    if (weft_link_table_write(route->links, &text, &bytes) < 0) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a link table");
    route->offer.links = hash(text, bytes);
    route->offer.fingerprint = weft_host_fingerprint("/");
    weft_free_bytes(env, text);
    return WEFT_OK;
}

/* ---- open ---- */

/* On loopback every peer shares this host. With a secret, peers of all its users share memory, too. So UCX would stay without a
 * peer, unless it is asked for or there is no shared memory. Its library is not loaded then. */
static bool ucx_is_spare(const struct route *route, const struct settings *settings, const char *lanes)
{
    const bool shares_memory = route->whole->part_count > 0 && route->kinds[0] == ROUTE_SHM;
    return shares_memory && route->secret && route_lanes_are_sockets(lanes) && !settings->use_given &&
           strcmp(settings->devices.all, "lo") == 0 && settings->tunes[ROUTE_UCX][0] == 0;
}

/* The devices of a part, or NULL with the reason why it is not to be opened. */
static const char *devices_of(struct route *route, int kind, const struct settings *settings, const char *lanes)
{
    const struct route_devices *devices = &settings->devices;
    const char *why = NULL;
    if (kind == ROUTE_VERBS) {
        if (devices->rdma[0]) return devices->rdma;
        const bool is_named = devices->network[0] && strcmp(devices->network, "lo") != 0;
        /* RoCE is found by its interface. Without any device the library of verbs is not loaded. */
        if (is_named && route_has_rdma("/")) return devices->network;
        why = is_named ? "there is no RDMA device" : "transport.devices names loopback alone";
    } else if (kind == ROUTE_UCX && ucx_is_spare(route, settings, lanes)) {
        why = "transport.devices names loopback alone, and memory is shared";
    } else if (kind == ROUTE_UCX) {
        if (!route_lanes_are_sockets(lanes)) return devices->all;
        if (devices->network[0]) return devices->network;
        why = "transport.devices names no network interface for it";
    } else {
        return devices->all;
    }
    snprintf(route->why[kind], sizeof route->why[kind], "%s", why);
    return NULL;
}

/* Has the user named something that only this part can use? Then he wants to know that it does not work. */
static bool asked_for(int kind, const struct settings *settings, const char *lanes)
{
    const struct route_devices *devices = &settings->devices;
    if (!core_backend_is_known(route_kind_names[kind])) return settings->tunes[kind][0] != 0;
    if (kind == ROUTE_VERBS) return devices->rdma[0] != 0;
    if (kind == ROUTE_UCX) return (devices->network[0] && strcmp(devices->network, "lo") != 0) || (lanes && strcmp(lanes, "tcp") != 0);
    return false;
}

/* One part, or the reason why there is none. An error only where the user is to blame. */
static enum weft_status open_part(struct route *route, int kind, const struct settings *settings,
                                  const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *whole = route->whole;
    struct weft_transport_options part = *options;
    struct weft_error why = {0};
    part.backend = route_kind_names[kind];
    part.tune = settings->tunes[kind];
    part.wrap = NULL;
    if (!(part.devices = devices_of(route, kind, settings, options->lanes))) return WEFT_OK;
    struct weft_transport **at = &route->parts[whole->part_count];
    enum weft_status status = weft_transport_open(whole->env, &part, at, &why);
    if (status < 0) {
        snprintf(route->why[kind], sizeof route->why[kind], "%.*s", (int)sizeof route->why[kind] - 1, why.text);
        bool meant = status == WEFT_ERR_NO_MEMORY || status == WEFT_ERR_INVALID || asked_for(kind, settings, options->lanes);
        return meant ? weft_error_set(error, status, "%s", why.text) : WEFT_OK;
    }
    (*at)->whole = whole;
    route->kinds[whole->part_count++] = (uint8_t)kind;
    return WEFT_OK;
}

static enum weft_status open_parts(struct route *route, const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *whole = route->whole;
    struct settings settings;
    WEFT_TRY(read_settings(&settings, options->tune, error));
    WEFT_TRY(route_devices_split("/", options->devices, &settings.devices, error));
    WEFT_TRY(read_links(route, settings.links, error));
    for (int kind = 0; kind < ROUTE_KINDS; kind++) snprintf(route->why[kind], sizeof route->why[kind], "left out by use=");
    for (uint32_t i = 0; i < settings.count; i++) WEFT_TRY(open_part(route, settings.order[i], &settings, options, error));
    if (whole->part_count > 0) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED, "no transport works here: shm: %.120s; verbs: %.120s; ucx: %.120s", route->why[0],
                          route->why[1], route->why[2]);
}

static enum weft_status make_address(struct route *route, struct weft_error *error)
{
    struct weft_transport *whole = route->whole;
    struct route_offer *offer = &route->offer;
    offer->nonce_hash = core_nonce_hash(whole->nonce);
    offer->id = whole->id;
    offer->host = host_mark();
    offer->space = space_mark(route->secret);
    for (uint32_t i = 0; i < whole->part_count; i++) {
        const void *blob;
        size_t bytes;
        WEFT_TRY(weft_transport_address(route->parts[i], &blob, &bytes));
        offer->ways[offer->way_count++] = (struct route_way){.kind = route->kinds[i], .blob = blob, .bytes = (uint32_t)bytes};
    }
    route->address_bytes = route_offer_encode(offer, route->address);
    if (route->address_bytes > 0) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_LIMIT, "the addresses of all transports are longer than %d bytes together: say tune use=... with fewer",
                          WEFT_TRANSPORT_ADDRESS_BYTES_MAX);
}

static enum weft_status open_epoll(struct route *route, struct weft_error *error)
{
    bool right = (route->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0;
    for (uint32_t i = 0; right && i < route->whole->part_count; i++) {
        int fd = route->parts[i]->ops->fd(route->parts[i]);
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = fd};
        right = epoll_ctl(route->epoll_fd, EPOLL_CTL_ADD, fd, &interest) == 0;
    }
    return right ? WEFT_OK : weft_error_set(error, WEFT_ERR_LIMIT, "no descriptor for an endpoint; raise ulimit -n");
}

static void set_name(struct route *route)
{
    struct weft_transport *whole = route->whole;
    size_t at = (size_t)snprintf(whole->name, sizeof whole->name, "auto");
    for (uint32_t i = 0; i < whole->part_count && at < sizeof whole->name; i++)
        at += (size_t)snprintf(whole->name + at, sizeof whole->name - at, "%c%s", i == 0 ? ' ' : '+', weft_transport_name(route->parts[i]));
}

static void route_free(struct weft_transport *whole)
{
    struct route *route = route_of(whole);
    for (uint32_t i = 0; i < whole->part_count; i++) weft_transport_free(route->parts[i]);
    weft_link_table_free(route->links);
    if (route->epoll_fd >= 0) close(route->epoll_fd);
    weft_free_bytes(whole->env, route);
    whole->parts = NULL;
    whole->part_count = 0;
}

static enum weft_status route_open(struct weft_transport *whole, const struct weft_transport_options *options, struct weft_error *error)
{
    struct route *route = weft_alloc_zero(whole->env, sizeof *route);
    if (!route) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for an endpoint");
    route->whole = whole;
    route->epoll_fd = -1;
    route->secret = options->secret != NULL && options->secret_bytes > 0;
    whole->backend = route;
    whole->parts = route->parts;
    enum weft_status status = open_parts(route, options, error);
    if (status == WEFT_OK) status = make_address(route, error);
    if (status == WEFT_OK) status = open_epoll(route, error);
    if (status < 0) {
        route_free(whole);
        return status;
    }
    whole->abilities = WEFT_TRANSPORT_WINDOWS;
    for (uint32_t i = 0; i < whole->part_count; i++) {
        unsigned abilities = weft_transport_abilities(route->parts[i]);
        if (!(abilities & WEFT_TRANSPORT_WINDOWS)) whole->abilities &= ~(unsigned)WEFT_TRANSPORT_WINDOWS;
        whole->abilities |= abilities & WEFT_TRANSPORT_MAPS;
    }
    set_name(route);
    return WEFT_OK;
}

static enum weft_status route_address(struct weft_transport *whole, const void **blob_out, size_t *bytes_out)
{
    *blob_out = route_of(whole)->address;
    *bytes_out = route_of(whole)->address_bytes;
    return WEFT_OK;
}

/* ---- peers ---- */

int route_kind_of(const struct route *route, const struct weft_transport *part)
{
    for (uint32_t i = 0; i < route->whole->part_count; i++)
        if (route->parts[i] == part) return route->kinds[i];
    return -1;
}

static struct weft_transport *part_of_kind(struct route *route, int kind)
{
    for (uint32_t i = 0; i < route->whole->part_count; i++)
        if (route->kinds[i] == kind) return route->parts[i];
    return NULL;
}

enum weft_status route_connect(struct weft_transport *whole, uint32_t peer_id, const void *blob, size_t bytes, struct weft_peer **peer_out)
{
    struct route *route = route_of(whole);
    struct route_offer theirs;
    enum route_reason reasons[ROUTE_KINDS];
    if (weft_transport_peer(whole, peer_id)) return WEFT_ERR_EXISTS;
    WEFT_TRY(route_offer_decode(blob, bytes, &theirs));
    if (theirs.nonce_hash != route->offer.nonce_hash) return WEFT_ERR_AUTH;
    if (theirs.id != peer_id) return WEFT_ERR_MALFORMED;
    int kind = route_choose(&route->offer, &theirs, route->secret, route->links, reasons);
    if (kind < 0) return WEFT_ERR_UNREACHABLE;
    const struct route_way *way = theirs.ways;
    while (way->kind != kind) way++;
    WEFT_TRY(weft_transport_connect(part_of_kind(route, kind), peer_id, way->blob, way->bytes, peer_out));
    for (int k = 0; k < ROUTE_KINDS; k++) (*peer_out)->marks |= (uint32_t)reasons[k] << (8 * k);
    return WEFT_OK;
}

void route_describe(struct weft_peer *peer, char *out, size_t bytes)
{
    struct weft_transport *part = peer->transport;
    const struct route *route = route_of(part->whole);
    const char *const texts[] = {
        [ROUTE_LATER] = "would work, too",
        [ROUTE_NOT_THERE] = "the peer does not offer it",
        [ROUTE_OTHER_HOST] = "another host",
        [ROUTE_OTHER_SPACE] = route->secret ? "another network namespace" : "another network namespace or user",
        [ROUTE_NO_SECRET] = "no job secret",
        [ROUTE_BAD_LINK] = "failed in the link table",
    };
    size_t at = 0;
    if (part->ops->describe) part->ops->describe(part, peer, out, bytes);
    else snprintf(out, bytes, "%s", part->name);
    at = strlen(out);
    const char *before = " (";
    for (int kind = 0; kind < ROUTE_KINDS && at < bytes; kind++) {
        enum route_reason reason = (enum route_reason)(peer->marks >> (8 * kind) & 0xff);
        if (reason == ROUTE_TAKEN) continue;
        at += (size_t)snprintf(out + at, bytes - at, "%snot %s: %s", before, route_kind_names[kind],
                               reason == ROUTE_NOT_HERE ? route->why[kind] : texts[reason]);
        before = "; ";
    }
    if (at + 1 < bytes) snprintf(out + at, bytes - at, ")");
}

/* ---- work ---- */

/* Nothing can happen in it but that somebody new says hello. */
static bool sleeps(const struct weft_transport *part)
{
    return part->peer_count == 0 && !part->rescan && !part->closed && part->wake_ns == WEFT_NEVER && weft_list_empty(&part->done) &&
           weft_list_empty(&part->ended) && weft_list_empty(&part->windows);
}

static void wake_next(struct route *route)
{
    for (uint32_t i = 0; i < route->whole->part_count; i++) {
        struct weft_transport *part = route->parts[i];
        if (part->wake_ns == WEFT_NEVER) continue;
        if (part->wake_ns <= weft_now_ns(part->env)) part->wake_ns = WEFT_NEVER;
        else core_wake_at(route->whole, part->wake_ns);
    }
}

static int route_progress(struct weft_transport *whole, int budget)
{
    struct route *route = route_of(whole);
    uint32_t turn = route->turn++;
    bool all = route->look_around || turn % ROUTE_LOOK_EVERY == 0;
    int count = 0;
    route->look_around = false;
    for (uint32_t i = 0; i < whole->part_count && count < budget; i++) {
        struct weft_transport *part = route->parts[(turn + i) % whole->part_count];
        if (all || !sleeps(part)) count += weft_transport_progress(part, budget - count);
    }
    wake_next(route);
    return count;
}

static enum weft_status route_arm(struct weft_transport *whole)
{
    struct route *route = route_of(whole);
    route->look_around = true;
    for (uint32_t i = 0; i < whole->part_count; i++) WEFT_TRY(core_arm(route->parts[i]));
    wake_next(route);
    return WEFT_OK;
}

static int route_fd(struct weft_transport *whole) { return route_of(whole)->epoll_fd; }

/* Everything is counted in the parts. */
static void route_count(struct weft_transport *whole)
{
    struct weft_transport_stats *sum = &whole->stats;
    *sum = (struct weft_transport_stats){0};
    for (uint32_t i = 0; i < whole->part_count; i++) {
        struct weft_transport_stats part;
        weft_transport_stats(whole->parts[i], &part);
        sum->sent_bytes += part.sent_bytes;
        sum->received_bytes += part.received_bytes;
        sum->sent_payload_bytes += part.sent_payload_bytes;
        sum->received_payload_bytes += part.received_payload_bytes;
        sum->sent_count += part.sent_count;
        sum->received_count += part.received_count;
        sum->unexpected_count += part.unexpected_count;
        sum->refused_count += part.refused_count;
        sum->put_bytes += part.put_bytes;
        sum->get_bytes += part.get_bytes;
        sum->put_count += part.put_count;
        sum->get_count += part.get_count;
        sum->copied_bytes += part.copied_bytes;
        sum->system_call_count += part.system_call_count;
        sum->work_request_count += part.work_request_count;
        sum->doorbell_count += part.doorbell_count;
        sum->signalled_count += part.signalled_count;
        sum->memory_bytes += part.memory_bytes;
        if (part.memory_peer_bytes > sum->memory_peer_bytes) sum->memory_peer_bytes = part.memory_peer_bytes;
    }
}

/* ---- end ---- */

static void route_close(struct weft_transport *whole)
{
    for (uint32_t i = 0; i < whole->part_count; i++) weft_transport_close(whole->parts[i]);
}

static bool route_drained(struct weft_transport *whole)
{
    for (uint32_t i = 0; i < whole->part_count; i++)
        if (!weft_transport_drained(whole->parts[i])) return false;
    return true;
}

/* Without peers of its own the whole is never asked for what concerns one: connect, send, put and the like are the parts'. */
const struct weft_transport_ops route_transport_ops = {
    .name = "auto",
    .open = route_open,
    .close = route_close,
    .drained = route_drained,
    .free = route_free,
    .address = route_address,
    .abilities = WEFT_TRANSPORT_WINDOWS | WEFT_TRANSPORT_MAPS,
    .window_open = route_window_open,
    .window_close = route_window_close,
    .window_free = route_window_free,
    .memory_keep = route_keep,
    .memory_forget = route_keep_end,
    .count = route_count,
    .progress = route_progress,
    .arm = route_arm,
    .fd = route_fd,
};
