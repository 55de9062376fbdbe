/* auto.c - life of the composite endpoint: opens every backend that works; progresses and sleeps on all of
 * them. */
#include "transport/auto/auto.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/auto/auto_ops.h"

/* ---- settings ---- */

struct settings {
    uint8_t order[AUTO_BACKENDS]; /* backends to open */
    uint32_t count;
    bool use_given;             /* `use=` was given */
    char links[256];
    char tunes[AUTO_BACKENDS][AUTO_TUNE_BYTES]; /* settings of each child */
    struct auto_devices devices;
};

static int kind_named(const char *name, size_t length)
{
    for (int kind = 0; kind < AUTO_BACKENDS; kind++)
        if (strlen(auto_backend_names[kind]) == length &&
            strncmp(name, auto_backend_names[kind], length) == 0)
            return kind;
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

/* "shm.cma=off" becomes "cma=off" for shm. */
static bool pass_to_backend(struct settings *settings, const char *item, size_t length)
{
    const char *dot = memchr(item, '.', length);
    int kind = dot ? kind_named(item, (size_t)(dot - item)) : -1;
    if (kind < 0) return false;
    char *tune = settings->tunes[kind];
    size_t at = strlen(tune), rest = length - (size_t)(dot + 1 - item);
    if (at + rest + 2 > AUTO_TUNE_BYTES) return false;
    snprintf(tune + at, AUTO_TUNE_BYTES - at, "%s%.*s", at > 0 ? "," : "", (int)rest, dot + 1);
    return true;
}

static const struct weft_key keys[] = {
    {.name = "links", .type = WEFT_KEY_TEXT, WEFT_KEY_AT(WEFT_FIELD_TEXT, struct settings, links)},
    {0},
};

static bool read_setting(struct settings *settings, const struct weft_key_value *item)
{
    if (item->value && item->name_bytes == 3 && memcmp(item->name, "use", 3) == 0)
        return settings->use_given = read_order(settings, item->value, item->value_bytes);
    const enum weft_key_result result = weft_key_value_set(keys, 0, item, settings);
    if (result != WEFT_KEY_UNKNOWN) return result == WEFT_KEY_STORED;
    return pass_to_backend(settings, item->item, item->item_bytes);
}

static enum weft_status read_settings(struct settings *settings, const char *text, struct weft_error *error)
{
    struct weft_key_value item;
    *settings = (struct settings){.count = AUTO_BACKENDS};
    for (int kind = 0; kind < AUTO_BACKENDS; kind++) settings->order[kind] = (uint8_t)kind;
    while (text && weft_key_value_next(&text, "", &item)) {
        if (read_setting(settings, &item)) continue;
        return weft_error_set(error, WEFT_ERR_INVALID,
                              "auto has no setting \"%.*s\": it has use=shm+verbs+ucx (any of them, most "
                              "wanted first), links=FILE, "
                              "and those of its parts, such as shm.cma=off",
                              (int)item.item_bytes, item.item);
    }
    return WEFT_OK;
}

/* ---- identity of host and namespace ---- */

static uint64_t hash(const void *data, size_t bytes)
{
    const uint64_t sum = weft_fnv_bytes(WEFT_FNV_BASIS, data, bytes);
    return sum ? sum : 1;
}

static uint64_t host_hash(void)
{
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0; /* errno is the reason */
    ssize_t bytes = read(fd, text, sizeof text);
    close(fd);
    errno = 0;
    return bytes > 0 ? hash(text, (size_t)bytes) : 0;
}

/* Identifies endpoints that can connect by Unix sockets: the network namespace, and the user if the job
 * has no secret. */
static uint64_t namespace_hash(bool secret)
{
    struct stat about;
    if (stat("/proc/self/ns/net", &about) != 0) return 0;
    uint64_t place[2] = {about.st_ino, secret ? UINT64_MAX : geteuid()};
    return hash(place, sizeof place);
}

/* A link table that is named must be readable. */
static enum weft_status read_links(struct auto_endpoint *auto_endpoint, const char *path,
                                   struct weft_error *error)
{
    char *text;
    size_t bytes;
    if (path[0] == 0) return WEFT_OK;
    struct weft_env *env = auto_endpoint->parent->env;
    WEFT_TRY(weft_link_table_load(env, path, &auto_endpoint->links, error));
    if (weft_link_table_write(auto_endpoint->links, &text, &bytes) < 0)
        return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for a link table");
    auto_endpoint->address_list.links = hash(text, bytes);
    auto_endpoint->address_list.fingerprint = weft_host_fingerprint("/");
    weft_free_bytes(env, text);
    return WEFT_OK;
}

/* ---- open ---- */

/* On loopback every peer shares this host, and with a secret all its users share memory. UCX would have no
 * peer, unless it is requested or shared memory does not work; so its library is not loaded. */
static bool ucx_is_spare(const struct auto_endpoint *auto_endpoint, const struct settings *settings,
                         const char *lanes)
{
    const bool shares_memory =
        auto_endpoint->parent->composite.child_count > 0 && auto_endpoint->kinds[0] == AUTO_SHM;
    return shares_memory && auto_endpoint->secret && auto_lanes_are_sockets(lanes) && !settings->use_given &&
           strcmp(settings->devices.all, "lo") == 0 && settings->tunes[AUTO_UCX][0] == 0;
}

/* The devices of a child, or NULL with the reason why it is not opened. */
static const char *devices_of(struct auto_endpoint *auto_endpoint, int kind, const struct settings *settings,
                              const char *lanes)
{
    const struct auto_devices *devices = &settings->devices;
    const char *why = NULL;
    if (kind == AUTO_VERBS) {
        if (devices->rdma[0]) return devices->rdma;
        const bool is_named = devices->network[0] && strcmp(devices->network, "lo") != 0;
        /* RoCE devices are found by their interface. Without an RDMA device the verbs library is not
         * loaded. */
        if (is_named && auto_has_rdma("/")) return devices->network;
        why = is_named ? "there is no RDMA device" : "transport.devices names loopback alone";
    } else if (kind == AUTO_UCX && ucx_is_spare(auto_endpoint, settings, lanes)) {
        why = "transport.devices names loopback alone, and memory is shared";
    } else if (kind == AUTO_UCX) {
        if (!auto_lanes_are_sockets(lanes)) return devices->all;
        if (devices->network[0]) return devices->network;
        why = "transport.devices names no network interface for it";
    } else {
        return devices->all;
    }
    snprintf(auto_endpoint->why[kind], sizeof auto_endpoint->why[kind], "%s", why);
    return NULL;
}

/* Whether a setting names something that only this backend can use: its failure is then an error. */
static bool is_requested(int kind, const struct settings *settings, const char *lanes)
{
    const struct auto_devices *devices = &settings->devices;
    if (!core_backend_is_known(auto_backend_names[kind])) return settings->tunes[kind][0] != 0;
    if (kind == AUTO_VERBS) return devices->rdma[0] != 0;
    if (kind == AUTO_UCX)
        return (devices->network[0] && strcmp(devices->network, "lo") != 0) ||
               (lanes && strcmp(lanes, "tcp") != 0);
    return false;
}

/* Opens one child or records why it is absent. Returns an error only if a setting is wrong. */
static enum weft_status open_child(struct auto_endpoint *auto_endpoint, int kind,
                                   const struct settings *settings,
                                   const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *parent = auto_endpoint->parent;
    struct weft_transport_options child = *options;
    struct weft_error why = {0};
    child.backend = auto_backend_names[kind];
    child.tune = settings->tunes[kind];
    child.wrap = NULL;
    if (!(child.devices = devices_of(auto_endpoint, kind, settings, options->lanes))) return WEFT_OK;
    struct weft_transport **at = &auto_endpoint->children[parent->composite.child_count];
    enum weft_status status = weft_transport_open(parent->env, &child, at, &why);
    if (status < 0) {
        snprintf(auto_endpoint->why[kind], sizeof auto_endpoint->why[kind], "%.*s",
                 (int)sizeof auto_endpoint->why[kind] - 1, why.text);
        bool meant = status == WEFT_ERR_NO_MEMORY || status == WEFT_ERR_INVALID || status == WEFT_ERR_LIMIT ||
                     is_requested(kind, settings, options->lanes);
        return meant ? weft_error_set(error, status, "%s", why.text) : WEFT_OK;
    }
    (*at)->composite.parent = parent;
    auto_endpoint->kinds[parent->composite.child_count++] = (uint8_t)kind;
    return WEFT_OK;
}

static enum weft_status open_children(struct auto_endpoint *auto_endpoint,
                                      const struct weft_transport_options *options, struct weft_error *error)
{
    struct weft_transport *parent = auto_endpoint->parent;
    struct settings settings;
    WEFT_TRY(read_settings(&settings, options->tune, error));
    WEFT_TRY(auto_devices_split("/", options->devices, &settings.devices, error));
    WEFT_TRY(read_links(auto_endpoint, settings.links, error));
    for (int kind = 0; kind < AUTO_BACKENDS; kind++)
        snprintf(auto_endpoint->why[kind], sizeof auto_endpoint->why[kind], "left out by use=");
    for (uint32_t i = 0; i < settings.count; i++)
        WEFT_TRY(open_child(auto_endpoint, settings.order[i], &settings, options, error));
    if (parent->composite.child_count > 0) return WEFT_OK;
    return weft_error_set(error, WEFT_ERR_UNSUPPORTED,
                          "no transport works here: shm: %.120s; verbs: %.120s; ucx: %.120s",
                          auto_endpoint->why[0], auto_endpoint->why[1], auto_endpoint->why[2]);
}

static enum weft_status make_address(struct auto_endpoint *auto_endpoint, struct weft_error *error)
{
    struct weft_transport *parent = auto_endpoint->parent;
    struct auto_address_list *address_list = &auto_endpoint->address_list;
    address_list->nonce_hash = core_nonce_hash(parent->nonce);
    address_list->id = parent->id;
    address_list->host = host_hash();
    if (address_list->host == 0 && errno == EMFILE) {
        const enum weft_status status = weft_limit_status("the identity of the host", errno);
        return weft_error_set(error, status, "%s", weft_reason_text(status));
    }
    address_list->net_namespace = namespace_hash(auto_endpoint->secret);
    for (uint32_t i = 0; i < parent->composite.child_count; i++) {
        const void *blob;
        size_t bytes;
        WEFT_TRY(weft_transport_address(auto_endpoint->children[i], &blob, &bytes));
        address_list->addresses[address_list->address_count++] = (struct auto_backend_address){
            .kind = auto_endpoint->kinds[i], .blob = blob, .bytes = (uint32_t)bytes};
    }
    auto_endpoint->address_bytes = auto_address_list_encode(address_list, auto_endpoint->address);
    if (auto_endpoint->address_bytes > 0) return WEFT_OK;
    return weft_error_set(
        error, WEFT_ERR_LIMIT,
        "the addresses of all transports are longer than %d bytes together: set tune use=... with fewer",
        WEFT_TRANSPORT_ADDRESS_BYTES_MAX);
}

static enum weft_status open_epoll(struct auto_endpoint *auto_endpoint, struct weft_error *error)
{
    bool right = (auto_endpoint->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0;
    for (uint32_t i = 0; right && i < auto_endpoint->parent->composite.child_count; i++) {
        int fd = auto_endpoint->children[i]->ops->fd(auto_endpoint->children[i]);
        struct epoll_event interest = {.events = EPOLLIN, .data.fd = fd};
        right = epoll_ctl(auto_endpoint->epoll_fd, EPOLL_CTL_ADD, fd, &interest) == 0;
    }
    return right ? WEFT_OK
                 : weft_error_set(error, WEFT_ERR_LIMIT, "no descriptor for an endpoint; raise ulimit -n");
}

static void set_name(struct auto_endpoint *auto_endpoint)
{
    struct weft_transport *parent = auto_endpoint->parent;
    size_t at = (size_t)snprintf(parent->name, sizeof parent->name, "auto");
    for (uint32_t i = 0; i < parent->composite.child_count && at < sizeof parent->name; i++)
        at += (size_t)snprintf(parent->name + at, sizeof parent->name - at, "%c%s", i == 0 ? ' ' : '+',
                               weft_transport_name(auto_endpoint->children[i]));
}

static void auto_free(struct weft_transport *parent)
{
    struct auto_endpoint *auto_endpoint = auto_of(parent);
    for (uint32_t i = 0; i < parent->composite.child_count; i++)
        weft_transport_free(auto_endpoint->children[i]);
    weft_link_table_free(auto_endpoint->links);
    if (auto_endpoint->epoll_fd >= 0) close(auto_endpoint->epoll_fd);
    weft_free_bytes(parent->env, auto_endpoint);
    parent->composite.children = NULL;
    parent->composite.child_count = 0;
}

static enum weft_status auto_open(struct weft_transport *parent, const struct weft_transport_options *options,
                                  struct weft_error *error)
{
    struct auto_endpoint *auto_endpoint = weft_alloc_zero(parent->env, sizeof *auto_endpoint);
    if (!auto_endpoint) return weft_error_set(error, WEFT_ERR_NO_MEMORY, "no memory for an endpoint");
    auto_endpoint->parent = parent;
    auto_endpoint->epoll_fd = -1;
    auto_endpoint->secret = options->secret != NULL && options->secret_bytes > 0;
    parent->backend = auto_endpoint;
    parent->composite.children = auto_endpoint->children;
    enum weft_status status = open_children(auto_endpoint, options, error);
    if (status == WEFT_OK) status = make_address(auto_endpoint, error);
    if (status == WEFT_OK) status = open_epoll(auto_endpoint, error);
    if (status < 0) {
        auto_free(parent);
        return status;
    }
    parent->abilities = WEFT_TRANSPORT_WINDOWS;
    for (uint32_t i = 0; i < parent->composite.child_count; i++) {
        unsigned abilities = weft_transport_abilities(auto_endpoint->children[i]);
        if (!(abilities & WEFT_TRANSPORT_WINDOWS)) parent->abilities &= ~(unsigned)WEFT_TRANSPORT_WINDOWS;
        parent->abilities |= abilities & WEFT_TRANSPORT_MAPS;
    }
    set_name(auto_endpoint);
    return WEFT_OK;
}

static enum weft_status auto_address(struct weft_transport *parent, const void **blob_out, size_t *bytes_out)
{
    *blob_out = auto_of(parent)->address;
    *bytes_out = auto_of(parent)->address_bytes;
    return WEFT_OK;
}

/* ---- peers ---- */

int auto_backend_of(const struct auto_endpoint *auto_endpoint, const struct weft_transport *child)
{
    for (uint32_t i = 0; i < auto_endpoint->parent->composite.child_count; i++)
        if (auto_endpoint->children[i] == child) return auto_endpoint->kinds[i];
    return -1;
}

static struct weft_transport *child_of_backend(struct auto_endpoint *auto_endpoint, int kind)
{
    for (uint32_t i = 0; i < auto_endpoint->parent->composite.child_count; i++)
        if (auto_endpoint->kinds[i] == kind) return auto_endpoint->children[i];
    return NULL;
}

enum weft_status auto_connect(struct weft_transport *parent, uint32_t peer_id, const void *blob, size_t bytes,
                              struct weft_peer **peer_out)
{
    struct auto_endpoint *auto_endpoint = auto_of(parent);
    struct auto_address_list theirs;
    enum auto_reason reasons[AUTO_BACKENDS];
    if (weft_transport_peer(parent, peer_id)) return WEFT_ERR_EXISTS;
    WEFT_TRY(auto_address_list_decode(blob, bytes, &theirs));
    if (theirs.nonce_hash != auto_endpoint->address_list.nonce_hash) return WEFT_ERR_AUTH;
    if (theirs.id != peer_id) return WEFT_ERR_MALFORMED;
    int kind = auto_choose(&auto_endpoint->address_list, &theirs, auto_endpoint->secret, auto_endpoint->links,
                           reasons);
    if (kind < 0) return WEFT_ERR_UNREACHABLE;
    const struct auto_backend_address *backend_address = theirs.addresses;
    while (backend_address->kind != kind) backend_address++;
    WEFT_TRY(weft_transport_connect(child_of_backend(auto_endpoint, kind), peer_id, backend_address->blob,
                                    backend_address->bytes, peer_out));
    for (int k = 0; k < AUTO_BACKENDS; k++) (*peer_out)->marks |= (uint32_t)reasons[k] << (8 * k);
    return WEFT_OK;
}

void auto_describe(struct weft_peer *peer, char *out, size_t bytes)
{
    struct weft_transport *child = peer->transport;
    const struct auto_endpoint *auto_endpoint = auto_of(child->composite.parent);
    const char *const texts[] = {
        [AUTO_LESS_PREFERRED] = "would work, too",
        [AUTO_MISSING_AT_PEER] = "the peer does not offer it",
        [AUTO_OTHER_HOST] = "another host",
        [AUTO_OTHER_NAMESPACE] =
            auto_endpoint->secret ? "another network namespace" : "another network namespace or user",
        [AUTO_NO_SECRET] = "no job secret",
        [AUTO_BAD_LINK] = "failed in the link table",
    };
    size_t at = 0;
    if (child->ops->describe) child->ops->describe(child, peer, out, bytes);
    else snprintf(out, bytes, "%s", child->name);
    at = strlen(out);
    const char *before = " (";
    for (int kind = 0; kind < AUTO_BACKENDS && at < bytes; kind++) {
        enum auto_reason reason = (enum auto_reason)(peer->marks >> (8 * kind) & 0xff);
        if (reason == AUTO_CHOSEN) continue;
        at += (size_t)snprintf(out + at, bytes - at, "%snot %s: %s", before, auto_backend_names[kind],
                               reason == AUTO_MISSING_HERE ? auto_endpoint->why[kind] : texts[reason]);
        before = "; ";
    }
    if (at + 1 < bytes) snprintf(out + at, bytes - at, ")");
}

/* ---- progress ---- */

/* Only a new connection can cause work in this child. */
static bool is_idle(const struct weft_transport *child)
{
    return child->peer_table.peer_count == 0 && !child->rescan && !child->closed &&
           child->attachment.wake_ns == WEFT_NEVER && weft_list_empty(&child->done) &&
           weft_list_empty(&child->ended) && weft_list_empty(&child->memory.windows);
}

static void schedule_wake(struct auto_endpoint *auto_endpoint)
{
    for (uint32_t i = 0; i < auto_endpoint->parent->composite.child_count; i++) {
        struct weft_transport *child = auto_endpoint->children[i];
        if (child->attachment.wake_ns == WEFT_NEVER) continue;
        if (child->attachment.wake_ns <= weft_now_ns(child->env)) child->attachment.wake_ns = WEFT_NEVER;
        else core_wake_at(auto_endpoint->parent, child->attachment.wake_ns);
    }
}

static int auto_progress(struct weft_transport *parent, int budget)
{
    struct auto_endpoint *auto_endpoint = auto_of(parent);
    uint32_t next_child = auto_endpoint->next_child++;
    bool all = auto_endpoint->poll_idle || next_child % AUTO_POLL_IDLE_EVERY == 0;
    int count = 0;
    auto_endpoint->poll_idle = false;
    for (uint32_t i = 0; i < parent->composite.child_count && count < budget; i++) {
        struct weft_transport *child =
            auto_endpoint->children[(next_child + i) % parent->composite.child_count];
        if (all || !is_idle(child)) count += weft_transport_progress(child, budget - count);
    }
    schedule_wake(auto_endpoint);
    return count;
}

static enum weft_status auto_arm(struct weft_transport *parent)
{
    struct auto_endpoint *auto_endpoint = auto_of(parent);
    auto_endpoint->poll_idle = true;
    for (uint32_t i = 0; i < parent->composite.child_count; i++)
        WEFT_TRY(core_arm(auto_endpoint->children[i]));
    schedule_wake(auto_endpoint);
    return WEFT_OK;
}

static int auto_fd(struct weft_transport *parent) { return auto_of(parent)->epoll_fd; }

/* All counters are in the children. */
static void auto_count(struct weft_transport *parent)
{
    struct weft_transport_stats *sum = &parent->stats;
    *sum = (struct weft_transport_stats){0};
    for (uint32_t i = 0; i < parent->composite.child_count; i++) {
        struct weft_transport_stats child;
        weft_transport_stats(parent->composite.children[i], &child);
        sum->sent_bytes += child.sent_bytes;
        sum->received_bytes += child.received_bytes;
        sum->sent_payload_bytes += child.sent_payload_bytes;
        sum->received_payload_bytes += child.received_payload_bytes;
        sum->sent_count += child.sent_count;
        sum->received_count += child.received_count;
        sum->unexpected_count += child.unexpected_count;
        sum->refused_count += child.refused_count;
        sum->put_bytes += child.put_bytes;
        sum->get_bytes += child.get_bytes;
        sum->put_count += child.put_count;
        sum->get_count += child.get_count;
        sum->copied_bytes += child.copied_bytes;
        sum->system_call_count += child.system_call_count;
        sum->work_request_count += child.work_request_count;
        sum->doorbell_count += child.doorbell_count;
        sum->signalled_count += child.signalled_count;
        sum->memory_bytes += child.memory_bytes;
        if (child.memory_peer_bytes > sum->memory_peer_bytes)
            sum->memory_peer_bytes = child.memory_peer_bytes;
    }
}

/* ---- end ---- */

static void auto_close(struct weft_transport *parent)
{
    for (uint32_t i = 0; i < parent->composite.child_count; i++)
        weft_transport_close(parent->composite.children[i]);
}

static bool auto_flushed(struct weft_transport *parent)
{
    for (uint32_t i = 0; i < parent->composite.child_count; i++)
        if (!weft_transport_is_flushed(parent->composite.children[i])) return false;
    return true;
}

static bool auto_drained(struct weft_transport *parent)
{
    for (uint32_t i = 0; i < parent->composite.child_count; i++)
        if (!weft_transport_drained(parent->composite.children[i])) return false;
    return true;
}

/* The parent has no peers: connect, send, put and others go to the children. */
const struct weft_transport_ops auto_transport_ops = {
    .name = "auto",
    .open = auto_open,
    .close = auto_close,
    .drained = auto_drained,
    .flushed = auto_flushed,
    .free = auto_free,
    .address = auto_address,
    .abilities = WEFT_TRANSPORT_WINDOWS | WEFT_TRANSPORT_MAPS,
    .window_open = auto_window_open,
    .window_close = auto_window_close,
    .window_free = auto_window_free,
    .memory.pin = auto_memory_register,
    .memory.unpin = auto_memory_unregister,
    .count = auto_count,
    .progress = auto_progress,
    .arm = auto_arm,
    .fd = auto_fd,
};
