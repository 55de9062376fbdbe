/* auto_choose.c - encoding of address lists, and the rule that makes one choice from two lists. Pure.
 *
 *   list     magic u32 | version u32 | nonce hash u32 | id u32 | host u64 | namespace u64 |
 *            fingerprint u64 | links u64 | bytes u32 (of all) | checksum u32 | addresses
 *   address  kind u8 | 0 u8 | bytes u16 | address of the backend            little endian
 *
 * The checksum covers everything except itself and the nonce hash, which is compared separately. */
#include <string.h>

#include "transport/auto/auto.h"

enum { MAGIC = 0x54555257 /* "WRUT" */, VERSION = 1, FIXED_BYTES = 56, WAY_BYTES = 4 };
/* links are compared by the round-trip time of such a message */
#define LINK_COST_BYTES ((uint64_t)1 << 20)

const char *const auto_backend_names[AUTO_BACKENDS] = {"shm", "verbs", "ucx"};

static uint32_t check_of(const uint8_t *data, size_t bytes)
{
    uint64_t sum = WEFT_FNV_BASIS;
    for (size_t i = 0; i < bytes; i++) {
        if ((i >= 8 && i < 12) || (i >= 52 && i < 56)) continue;
        sum = weft_fnv(sum, data[i]);
    }
    return (uint32_t)(sum >> 16);
}

size_t auto_address_list_encode(const struct auto_address_list *address_list,
                                uint8_t out[WEFT_TRANSPORT_ADDRESS_BYTES_MAX])
{
    size_t at = FIXED_BYTES;
    put_le32(out, MAGIC);
    put_le32(out + 4, VERSION);
    put_le32(out + 8, address_list->nonce_hash);
    put_le32(out + 12, address_list->id);
    put_le64(out + 16, address_list->host);
    put_le64(out + 24, address_list->net_namespace);
    put_le64(out + 32, address_list->fingerprint);
    put_le64(out + 40, address_list->links);
    for (uint32_t i = 0; i < address_list->address_count; i++) {
        const struct auto_backend_address *backend_address = &address_list->addresses[i];
        if (at + WAY_BYTES + backend_address->bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX) return 0;
        put_le32(out + at, backend_address->kind | backend_address->bytes << 16);
        memcpy(out + at + WAY_BYTES, backend_address->blob, backend_address->bytes);
        at += WAY_BYTES + backend_address->bytes;
    }
    put_le32(out + 48, (uint32_t)at);
    put_le32(out + 52, check_of(out, at));
    return at;
}

/* Decodes the addresses up to the last byte; rejects duplicates and unknown backends. */
static bool ways_read(struct auto_address_list *address_list, const uint8_t *data, size_t bytes)
{
    uint32_t seen = 0;
    size_t at = FIXED_BYTES;
    for (; at < bytes && address_list->address_count < AUTO_BACKENDS; address_list->address_count++) {
        if (bytes - at < WAY_BYTES) return false;
        struct auto_backend_address *backend_address = &address_list->addresses[address_list->address_count];
        *backend_address = (struct auto_backend_address){
            .kind = data[at], .blob = data + at + WAY_BYTES, .bytes = get_le32(data + at) >> 16};
        if (data[at + 1] != 0 || backend_address->kind >= AUTO_BACKENDS || seen & 1u << backend_address->kind)
            return false;
        if (backend_address->bytes == 0 || backend_address->bytes > bytes - at - WAY_BYTES) return false;
        seen |= 1u << backend_address->kind;
        at += WAY_BYTES + backend_address->bytes;
    }
    return at == bytes && address_list->address_count > 0;
}

enum weft_status auto_address_list_decode(const void *data, size_t bytes, struct auto_address_list *offer_out)
{
    const uint8_t *at = data;
    if (bytes < FIXED_BYTES || bytes > WEFT_TRANSPORT_ADDRESS_BYTES_MAX || get_le32(at) != MAGIC)
        return WEFT_ERR_MALFORMED;
    if (get_le32(at + 4) != VERSION) return WEFT_ERR_VERSION;
    if (get_le32(at + 48) != bytes || get_le32(at + 52) != check_of(at, bytes)) return WEFT_ERR_MALFORMED;
    *offer_out = (struct auto_address_list){.nonce_hash = get_le32(at + 8),
                                            .id = get_le32(at + 12),
                                            .host = get_le64(at + 16),
                                            .net_namespace = get_le64(at + 24),
                                            .fingerprint = get_le64(at + 32),
                                            .links = get_le64(at + 40)};
    return ways_read(offer_out, at, bytes) ? WEFT_OK : WEFT_ERR_MALFORMED;
}

/* ---- the rule ---- */

static bool has_backend(const struct auto_address_list *address_list, int kind)
{
    for (uint32_t i = 0; i < address_list->address_count; i++)
        if (address_list->addresses[i].kind == kind) return true;
    return false;
}

/* Whether the backend can work between the two, by their lists. */
static enum auto_reason why_not_backend(const struct auto_address_list *mine,
                                        const struct auto_address_list *theirs, bool secret, int kind)
{
    bool one_host = mine->host != 0 && mine->host == theirs->host;
    if (!has_backend(mine, kind)) return AUTO_MISSING_HERE;
    if (!has_backend(theirs, kind)) return AUTO_MISSING_AT_PEER;
    if (strcmp(auto_backend_names[kind], "shm") == 0) {
        /* its sockets are visible in one network namespace only */
        if (!one_host) return AUTO_OTHER_HOST;
        if (mine->net_namespace != theirs->net_namespace) return AUTO_OTHER_NAMESPACE;
    }
    if (strcmp(auto_backend_names[kind], "verbs") == 0 && !one_host && !secret) return AUTO_NO_SECRET;
    return AUTO_LESS_PREFERRED;
}

static uint32_t host_index(const struct weft_link_table *links, uint64_t fingerprint)
{
    uint32_t count = weft_link_table_host_count(links), index = 0;
    while (index < count && weft_link_table_host_fingerprint(links, index) != fingerprint) index++;
    return index == count ? UINT32_MAX : index;
}

/* A lane of the backend in a link table: its name, or its name and a colon. */
static bool lane_is(const char *lane, const char *name)
{
    size_t length = strlen(name);
    return strncmp(lane, name, length) == 0 && (lane[length] == 0 || lane[length] == ':');
}

/* Time of the fastest lane in one direction; 0: not measured; WEFT_NEVER: measured, but none works. */
static uint64_t direction_ns(const struct weft_link_table *links, uint32_t from, uint32_t to, int kind)
{
    uint64_t best_ns = 0;
    for (uint32_t i = 0; i < weft_link_table_count(links); i++) {
        const struct weft_link *link = weft_link_table_get(links, i);
        if (link->from != from || link->to != to || !lane_is(link->lane, auto_backend_names[kind])) continue;
        uint64_t time_ns = weft_link_time_ns(link, LINK_COST_BYTES);
        if (best_ns == 0 || time_ns < best_ns) best_ns = time_ns > 0 ? time_ns : 1;
    }
    return best_ns;
}

/* Round trip; 0: not measured in both directions; WEFT_NEVER: one direction does not work. */
static uint64_t measured_ns(const struct weft_link_table *links, uint32_t one, uint32_t other, int kind)
{
    uint64_t there_ns = direction_ns(links, one, other, kind),
             back_ns = direction_ns(links, other, one, kind);
    if (there_ns == WEFT_NEVER || back_ns == WEFT_NEVER) return WEFT_NEVER;
    return there_ns == 0 || back_ns == 0 ? 0 : there_ns + back_ns;
}

int auto_choose(const struct auto_address_list *mine, const struct auto_address_list *theirs, bool secret,
                const struct weft_link_table *links, enum auto_reason reasons_out[AUTO_BACKENDS])
{
    const struct auto_address_list *first = mine->id <= theirs->id ? mine : theirs;
    uint32_t here = UINT32_MAX, there = UINT32_MAX;
    int taken = -1;
    uint64_t taken_ns = 0;
    if (links && mine->links != 0 && mine->links == theirs->links) {
        here = host_index(links, mine->fingerprint);
        there = host_index(links, theirs->fingerprint);
    }
    for (int kind = 0; kind < AUTO_BACKENDS; kind++)
        reasons_out[kind] = why_not_backend(mine, theirs, secret, kind);
    for (uint32_t i = 0; i < first->address_count; i++) {
        int kind = first->addresses[i].kind;
        if (reasons_out[kind] != AUTO_LESS_PREFERRED) continue;
        uint64_t time_ns =
            here != UINT32_MAX && there != UINT32_MAX ? measured_ns(links, here, there, kind) : 0;
        if (time_ns == WEFT_NEVER) reasons_out[kind] = AUTO_BAD_LINK;
        /* A measured backend wins over an unmeasured one; of two measured ones the faster; else list
         * order. */
        else if (taken < 0 || (time_ns > 0 && (taken_ns == 0 || time_ns < taken_ns)))
            taken = kind, taken_ns = time_ns;
    }
    if (taken >= 0) reasons_out[taken] = AUTO_CHOSEN;
    return taken;
}
