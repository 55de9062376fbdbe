/* mesh.c - the ranks as a grid with named axes, and a group for every line of the grid.
 *
 *     dp x tp = 2 x 4        tp ->      rank = dp * 4 + tp: the last axis varies fastest
 *                        0  1  2  3     group of axis tp at rank 6: {4 5 6 7}
 *                   dp   4  5  6  7     group of axis dp at rank 6: {2 6}
 *
 * All ranks exchange their description; the error names the first that differs. Ids follow from the grid:
 * from the largest next_group_id on, each set of axes has a range of ids, and each group of the set its index
 * in the range. */
#include <stdio.h>
#include <string.h>

#include "client/comm/comm.h"
#include "client/comm/comms.h"
#include "client/engine/group.h"
#include "client/session/failure.h"
#include "client/session/membership.h"
#include "client/session/session.h"

#define AXES_MAX 8u
#define AXIS_NAME_BYTES 16u
#define GROUP_ID_MAX 0xffffffu

struct axis {
    char name[AXIS_NAME_BYTES];
    uint32_t size, stride, at; /* ranks between neighbours; coordinate of this rank */
};

/* This rank's group of a set of axes. */
struct axis_group {
    struct weft_list link;
    uint32_t axes; /* one bit per axis */
    struct weft_comm *comm;
};

struct weft_mesh {
    struct weft_session *session;
    struct weft_list link;        /* session->comms->meshes */
    struct weft_list axis_groups; /* struct axis_group.link */
    uint32_t axis_count;
    struct axis axes[AXES_MAX];
};

/* Description that a rank sends. */
struct mesh_entry {
    int64_t next_id, axis_count, wanted; /* wanted: set of axes; 0: each axis alone */
    struct { char name[AXIS_NAME_BYTES]; int64_t size; } axes[AXES_MAX];
};
#define MESH_ENTRY_WORDS (sizeof(struct mesh_entry) / 8)
_Static_assert(MESH_ENTRY_WORDS <= CLIENT_COMM_EXCHANGE_WORDS_MAX, "travels in a meeting");

/* ---- description ---- */

static enum weft_status check_axis(struct weft_session *session, const struct weft_axis *axes, uint32_t index)
{
    const char *name = axes[index].name;
    if (!name || !name[0] || strlen(name) >= AXIS_NAME_BYTES || strchr(name, ','))
        return client_error(session, WEFT_ERR_INVALID,
                            "mesh: axis %u has the name '%.40s'; names have 1 to %u bytes and no comma",
                            index, name ? name : "(NULL)", AXIS_NAME_BYTES - 1);
    if (!weft_text_is_printable(name))
        return client_error(session, WEFT_ERR_INVALID,
                            "mesh: axis %u has the name '%s'; an axis' name holds no control characters",
                            index, name);
    for (uint32_t other = 0; other < index; other++)
        if (strcmp(axes[other].name, name) == 0)
            return client_error(session, WEFT_ERR_INVALID, "mesh: two axes are called '%s'", name);
    return WEFT_OK;
}

/* Fills in the size that is 0. The product of the sizes must be the number of ranks. */
static enum weft_status resolve_sizes(struct weft_session *session, const struct weft_axis *axes,
                                      uint32_t count, struct weft_mesh *mesh)
{
    uint64_t product = 1;
    uint32_t open = count;
    char text[256];
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        WEFT_TRY(check_axis(session, axes, i));
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%u", i ? " x " : "", axes[i].name,
                                     axes[i].size);
        if (axes[i].size == 0 && open < count)
            return client_error(session, WEFT_ERR_INVALID,
                                "mesh %s: only one axis may have size 0 (the remaining factor)", text);
        if (axes[i].size == 0) open = i;
        else if (product <= session->ranks) product *= axes[i].size;
        snprintf(mesh->axes[i].name, AXIS_NAME_BYTES, "%s", axes[i].name);
        mesh->axes[i].size = axes[i].size;
    }
    bool divides = product > 0 && product <= session->ranks && session->ranks % product == 0;
    if (open < count && divides) mesh->axes[open].size = session->ranks / (uint32_t)product;
    if (open < count ? !divides : product != session->ranks)
        return client_error(
            session, WEFT_ERR_INVALID,
            "mesh %.200s does not fit the %u ranks of the job: the product of the sizes must be that", text,
            session->ranks);
    uint32_t stride = 1;
    for (uint32_t i = count; i-- > 0;) {
        mesh->axes[i].stride = stride;
        mesh->axes[i].at = session->rank / stride % mesh->axes[i].size;
        stride *= mesh->axes[i].size;
    }
    return WEFT_OK;
}

/* ---- agreement ---- */

static enum weft_status compare(struct weft_session *session, const struct mesh_entry *all,
                                const struct mesh_entry *mine)
{
    for (uint32_t rank = 0; rank < session->ranks; rank++) {
        const struct mesh_entry *other = &all[rank];
        char name[128];
        client_rank_name(session, rank, name, sizeof name);
        if (other->axis_count != mine->axis_count || other->wanted != mine->wanted)
            return client_error(session, WEFT_ERR_MISMATCH, "mesh: %s %s than this rank (%u)", name,
                                other->axis_count != mine->axis_count ? "has another number of axes"
                                                                      : "has another set of axes",
                                session->rank);
        for (uint32_t i = 0; i < (uint32_t)mine->axis_count && i < AXES_MAX; i++) {
            if (memcmp(other->axes[i].name, mine->axes[i].name, AXIS_NAME_BYTES) == 0 &&
                other->axes[i].size == mine->axes[i].size)
                continue;
            return client_error(session, WEFT_ERR_MISMATCH,
                                "mesh: axis %u is %.15s=%lld at %s and %s=%lld at this rank (%u)", i,
                                other->axes[i].name, (long long)other->axes[i].size, name, mine->axes[i].name,
                                (long long)mine->axes[i].size, session->rank);
        }
    }
    return WEFT_OK;
}

/* Compares the descriptions. *id_out is the first id that no rank has used. */
static enum weft_status agree(struct weft_mesh *mesh, uint32_t wanted, uint32_t *id_out)
{
    struct weft_session *session = mesh->session;
    struct mesh_entry mine = {
        .next_id = session->comms->next_group_id, .axis_count = mesh->axis_count, .wanted = wanted};
    int64_t words[MESH_ENTRY_WORDS];
    const int64_t *answer;
    for (uint32_t i = 0; i < mesh->axis_count; i++) {
        memcpy(mine.axes[i].name, mesh->axes[i].name, AXIS_NAME_BYTES);
        mine.axes[i].size = mesh->axes[i].size;
    }
    memcpy(words, &mine, sizeof mine);
    WEFT_TRY(client_comm_exchange(session, NULL, WEFT_COLL_LABEL_MESH, words, MESH_ENTRY_WORDS, &answer));
    const struct mesh_entry *all = (const struct mesh_entry *)answer;
    WEFT_TRY(compare(session, all, &mine));
    int64_t first = 0;
    for (uint32_t rank = 0; rank < session->ranks; rank++)
        if (all[rank].next_id > first) first = all[rank].next_id;
    if (first <= 0 || first > GROUP_ID_MAX - (int64_t)session->ranks * AXES_MAX)
        return client_error(session, WEFT_ERR_LIMIT,
                            "mesh: more groups would exceed the %u that a job can make; restart the job",
                            GROUP_ID_MAX);
    *id_out = (uint32_t)first;
    return WEFT_OK;
}

/* ---- groups ---- */

/* Ranks of the group along the axes of `set`: equal in all other coordinates, in rank order. */
static uint32_t *members_along(const struct weft_mesh *mesh, uint32_t set, uint32_t *count_out,
                               uint32_t *index_out, uint32_t *groups_out)
{
    const struct weft_session *session = mesh->session;
    uint32_t count = 1, base = 0, index = 0, groups = 1;
    for (uint32_t i = 0; i < mesh->axis_count; i++) {
        const struct axis *axis = &mesh->axes[i];
        if (set >> i & 1) {
            count *= axis->size;
        } else {
            base += axis->at * axis->stride;
            index = index * axis->size + axis->at;
            groups *= axis->size;
        }
    }
    uint32_t *members = weft_alloc_array(session->env, count, sizeof *members);
    for (uint32_t m = 0; members && m < count; m++) {
        uint32_t rest = m;
        members[m] = base;
        for (uint32_t i = mesh->axis_count; i-- > 0;) {
            if (!(set >> i & 1)) continue;
            members[m] += rest % mesh->axes[i].size * mesh->axes[i].stride;
            rest /= mesh->axes[i].size;
        }
    }
    *count_out = count;
    *index_out = index;
    *groups_out = groups;
    return members;
}

static void name_of(const struct weft_mesh *mesh, uint32_t set, char *out, size_t out_bytes)
{
    size_t used = (size_t)snprintf(out, out_bytes, "axis ");
    for (uint32_t i = 0; i < mesh->axis_count; i++)
        if (set >> i & 1 && used < out_bytes)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used > 5 ? "," : "",
                                     mesh->axes[i].name);
}

/* Makes this rank's group of a set of axes. *id: the first id of this set, then of the next. */
static enum weft_status make_axis_group(struct weft_mesh *mesh, uint32_t set, uint32_t *id)
{
    struct weft_session *session = mesh->session;
    uint32_t count, index, groups;
    char name[64];
    name_of(mesh, set, name, sizeof name);
    struct axis_group *axis_group = weft_alloc_zero(session->env, sizeof *axis_group);
    uint32_t *members = members_along(mesh, set, &count, &index, &groups);
    uint32_t own = *id + index;
    *id += groups;
    if (!axis_group || !members) {
        weft_free_bytes(session->env, axis_group);
        weft_free_bytes(session->env, members);
        return client_error(session, WEFT_ERR_NO_MEMORY, "mesh: no memory for the group of %s", name);
    }
    enum weft_status status = client_comm_create(session, members, count, own, name, &axis_group->comm);
    if (status < 0) {
        weft_free_bytes(session->env, axis_group);
        return status;
    }
    axis_group->axes = set;
    weft_list_append(&mesh->axis_groups, &axis_group->link);
    return WEFT_OK;
}

/* Makes the groups of `wanted` (0: each axis alone). Collective. */
static enum weft_status make_axis_groups(struct weft_mesh *mesh, uint32_t wanted)
{
    struct weft_session *session = mesh->session;
    uint32_t id;
    WEFT_TRY(agree(mesh, wanted, &id));
    enum weft_status status = WEFT_OK;
    for (uint32_t i = 0; i < mesh->axis_count && wanted == 0; i++) {
        enum weft_status made = make_axis_group(mesh, 1u << i, &id); /* ids advance also after an error */
        if (status == WEFT_OK) status = made;
    }
    if (wanted != 0) status = make_axis_group(mesh, wanted, &id);
    session->comms->next_group_id = id;
    return client_comm_check_all(session, NULL, WEFT_COLL_LABEL_MESH, status);
}

static struct axis_group *find_axis_group(const struct weft_mesh *mesh, uint32_t set)
{
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &mesh->axis_groups) {
        struct axis_group *axis_group = weft_container_of(node, struct axis_group, link);
        if (axis_group->axes == set) return axis_group;
    }
    return NULL;
}

/* ---- public calls ---- */

enum weft_status weft_mesh_create(struct weft_session *session, const struct weft_axis *axes,
                                  uint32_t axis_count, struct weft_mesh **mesh_out)
{
    WEFT_DEFAULT_FLOATS;
    if (!session) return client_null_argument("mesh_create", "session");
    WEFT_TRY(client_comm_check_create(session, "mesh_create"));
    if (!axes || !mesh_out)
        return client_error(session, WEFT_ERR_INVALID, "mesh_create: %s is NULL", axes ? "mesh_out" : "axes");
    if (axis_count == 0 || axis_count > AXES_MAX)
        return client_error(session, WEFT_ERR_INVALID, "mesh_create: %u axes; a mesh has 1 to %u", axis_count,
                            AXES_MAX);
    struct weft_mesh *mesh = weft_alloc_zero(session->env, sizeof *mesh);
    if (!mesh) return client_error(session, WEFT_ERR_NO_MEMORY, "mesh: no memory for the mesh");
    mesh->session = session;
    mesh->axis_count = axis_count;
    weft_list_init(&mesh->axis_groups);
    weft_list_append(&session->comms->meshes, &mesh->link);
    enum weft_status status = resolve_sizes(session, axes, axis_count, mesh);
    if (status == WEFT_OK) status = make_axis_groups(mesh, 0);
    if (status < 0) weft_mesh_free(mesh);
    else *mesh_out = mesh;
    return status;
}

static void free_memory(struct weft_mesh *mesh)
{
    struct weft_env *env = mesh->session->env;
    while (!weft_list_empty(&mesh->axis_groups)) {
        struct axis_group *axis_group = weft_list_first(&mesh->axis_groups, struct axis_group, link);
        weft_list_remove(&axis_group->link);
        weft_free_bytes(env, axis_group);
    }
    weft_list_remove(&mesh->link);
    weft_free_bytes(env, mesh);
}

enum weft_status weft_mesh_free(struct weft_mesh *mesh)
{
    if (!mesh) return WEFT_OK;
    struct weft_list *node, *spare;
    weft_list_foreach(node, spare, &mesh->axis_groups) {
        struct axis_group *axis_group = weft_container_of(node, struct axis_group, link);
        WEFT_TRY(weft_comm_free(axis_group->comm));
        weft_list_remove(&axis_group->link);
        weft_free_bytes(mesh->session->env, axis_group);
    }
    free_memory(mesh);
    return WEFT_OK;
}

void client_meshes_free(struct weft_session *session)
{
    while (!weft_list_empty(&session->comms->meshes))
        free_memory(weft_list_first(&session->comms->meshes, struct weft_mesh, link));
}

static uint32_t find_axis(const struct weft_mesh *mesh, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < mesh->axis_count; i++)
        if (strlen(mesh->axes[i].name) == bytes && memcmp(mesh->axes[i].name, name, bytes) == 0) return i;
    return AXES_MAX;
}

static enum weft_status parse_set(const struct weft_mesh *mesh, const char *names, uint32_t *set_out)
{
    uint32_t set = 0;
    for (const char *at = names; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        size_t bytes = strcspn(at, ",");
        uint32_t axis = find_axis(mesh, at, bytes);
        if (axis == AXES_MAX || set >> axis & 1)
            return client_error(mesh->session, WEFT_ERR_INVALID, "mesh: '%.*s' is %s",
                                (int)(bytes < 40 ? bytes : 40), at,
                                axis == AXES_MAX ? "none of its axes" : "named twice");
        set |= 1u << axis;
    }
    *set_out = set;
    return WEFT_OK;
}

enum weft_status weft_mesh_comm(struct weft_mesh *mesh, const char *axes, struct weft_comm **comm_out)
{
    if (!mesh) return client_null_argument("mesh_comm", "mesh");
    struct weft_session *session = mesh->session;
    uint32_t set = 0;
    WEFT_TRY(client_usable(session));
    if (!axes || !comm_out)
        return client_error(session, WEFT_ERR_INVALID, "mesh_comm: axes or comm_out is NULL");
    WEFT_TRY(parse_set(mesh, axes, &set));
    if (!find_axis_group(mesh, set)) {
        WEFT_TRY(client_comm_check_create(session, "mesh_comm"));
        enum weft_status status = make_axis_groups(mesh, set);
        if (status < 0) {
            struct axis_group *half_made = find_axis_group(mesh, set);
            if (half_made) {
                weft_comm_free(half_made->comm);
                weft_list_remove(&half_made->link);
                weft_free_bytes(session->env, half_made);
            }
            return status;
        }
    }
    *comm_out = find_axis_group(mesh, set)->comm;
    return WEFT_OK;
}

uint32_t weft_mesh_size(const struct weft_mesh *mesh, const char *axis)
{
    uint32_t index = mesh && axis ? find_axis(mesh, axis, strlen(axis)) : AXES_MAX;
    return index < AXES_MAX ? mesh->axes[index].size : 0;
}

uint32_t weft_mesh_coordinate(const struct weft_mesh *mesh, const char *axis, uint32_t rank)
{
    uint32_t index = mesh && axis ? find_axis(mesh, axis, strlen(axis)) : AXES_MAX;
    if (index >= AXES_MAX || rank >= mesh->session->ranks) return UINT32_MAX;
    return rank / mesh->axes[index].stride % mesh->axes[index].size;
}

uint32_t weft_mesh_rank(const struct weft_mesh *mesh, const uint32_t *coordinates)
{
    if (!mesh || !coordinates) return UINT32_MAX;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < mesh->axis_count; i++) {
        if (coordinates[i] >= mesh->axes[i].size) return UINT32_MAX;
        rank += coordinates[i] * mesh->axes[i].stride;
    }
    return rank;
}
