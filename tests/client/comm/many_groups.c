/* many_groups.c - a worker that makes very many groups and prints their cost, for
 * tests/system/test_groups.py. Counts bytes, no times.
 *
 *     hold N unused|used   N groups of meshes dp x tp x pp x ep: every set of axes, mesh after mesh, all
 *                          alive at once. `used`: each sums 8 bytes and 64 KiB and sends; every rank uses
 *                          them in an order of its own, so all calls of a mesh are started before one is
 *                          waited for
 *     churn N              N groups made, used and freed, one after the other
 *
 *     create N         N overlapping groups that their members alone make (weft_comm_create), used, two alive
 *     die              as create 1; then the last rank kills itself while the others wait for it in
 *                      weft_comm_create. They print "create: STATUS: TEXT"
 *
 * Prints "hold N PSS HEAP FDS", "churn ..." or "create ..." after the first few and at the end: Pss of the
 * process, bytes allocated, open descriptors. Exit status 0: every sum was right. */
#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "weft/weft.h"

enum { AXES = 4, SETS = (1 << AXES) - 1, LONG = 16384, MESHES_MAX = 128, LATER = 8 };

static const char *const names[AXES] = {"dp", "tp", "pp", "ep"};
static struct weft_session *session;
static float longs[LONG];

static void must(const char *what, enum weft_status status)
{
    if (status == WEFT_OK) return;
    printf("%s: %s: %s\n", what, weft_status_name(status), weft_error_text(session));
    exit(2);
}

static void finish(const char *what, enum weft_status status, struct weft_request *request)
{
    must(what, status == WEFT_IN_PROGRESS ? weft_wait(request, 0) : status);
}

static void expect(bool right, const char *what)
{
    if (right) return;
    printf("rank %u: %s is wrong\n", weft_rank(session), what);
    exit(1);
}

/* ---- cost ---- */
static unsigned long long pss(void)
{
    char line[256];
    unsigned long long kilobytes = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Pss: %llu kB", &kilobytes) == 1) break;
    if (file) fclose(file);
    return kilobytes << 10;
}

static unsigned descriptors(void)
{
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory)) count++;
    if (directory) closedir(directory);
    return count;
}

static void say(const char *what, unsigned groups)
{
    struct weft_request request = {{0}};
    /* no rank measures in the middle of an operation */
    finish("barrier", weft_barrier(session, &request), &request);
    struct mallinfo2 heap = mallinfo2();
    printf("%s %u %llu %zu %u\n", what, groups, pss(), heap.uordblks + heap.hblkhd, descriptors());
    finish("barrier", weft_barrier(session, &request), &request);
}

/* ---- use ---- */
static void ring(struct weft_comm *comm)
{
    struct weft_request sent = {{0}}, received = {{0}};
    const uint32_t ranks = weft_comm_ranks(comm), rank = weft_comm_rank(comm);
    int32_t out = (int32_t)rank, in = -1;
    if (ranks == 1) return;
    enum weft_status status =
        weft_call_start(session,
                        WEFT_CALL(.kind = WEFT_CALL_RECV, .comm = comm, .out = &in, .count = 1,
                                  .dtype = WEFT_I32, .root = (rank + ranks - 1) % ranks),
                        &received);
    if (status < 0) must("recv", status);
    finish("send",
           weft_call_start(session,
                           WEFT_CALL(.kind = WEFT_CALL_SEND, .comm = comm, .in = &out, .count = 1,
                                     .dtype = WEFT_I32, .root = (rank + 1) % ranks),
                           &sent),
           &sent);
    finish("recv", status, &received);
    expect(in == (int32_t)((rank + ranks - 1) % ranks), "the neighbour's value");
}

/* All sets of axes at once, in an order of this rank's own. */
static void use(struct weft_comm *const comms[], unsigned count)
{
    struct weft_request requests[SETS];
    int64_t ones[SETS];
    memset(requests, 0, sizeof requests);
    for (unsigned i = 0; i < count; i++) {
        const unsigned at = (i + weft_rank(session)) % count;
        ones[at] = 1;
        enum weft_status status =
            weft_call_start(session,
                            WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comms[at], .in = &ones[at],
                                      .out = &ones[at], .count = 1, .dtype = WEFT_I64, .op = WEFT_SUM),
                            &requests[at]);
        if (status < 0) must("all_reduce", status);
    }
    for (unsigned i = 0; i < count; i++) {
        must("all_reduce", weft_wait(&requests[i], 0));
        expect(ones[i] == weft_comm_ranks(comms[i]), "a sum of ones");
    }
    for (unsigned i = 0; i < count; i++) {
        struct weft_request request = {{0}};
        for (unsigned e = 0; e < LONG; e++) longs[e] = 1;
        finish("all_reduce",
               weft_call_start(session,
                               WEFT_CALL(.kind = WEFT_CALL_ALL_REDUCE, .comm = comms[i], .in = longs,
                                         .out = longs, .count = LONG, .dtype = WEFT_F32, .op = WEFT_SUM),
                               &request),
               &request);
        expect(longs[0] == (float)weft_comm_ranks(comms[i]) && longs[LONG - 1] == longs[0],
               "a long sum of ones");
        ring(comms[i]);
    }
}

/* ---- all at once ---- */
static struct weft_mesh *mesh_make(void)
{
    struct weft_axis axes[AXES];
    uint32_t left = weft_ranks(session);
    struct weft_mesh *mesh;
    for (unsigned a = 0; a < AXES; a++) {
        axes[a] = (struct weft_axis){names[a], a + 1 < AXES && left % 2 == 0 ? 2 : 1};
        left /= axes[a].size;
    }
    axes[AXES - 1].size = left;
    must("mesh", weft_mesh_create(session, axes, AXES, &mesh));
    return mesh;
}

static unsigned mesh_fill(struct weft_mesh *mesh, unsigned most, struct weft_comm *comms[])
{
    for (unsigned set = 1; set <= SETS && set <= most; set++) {
        char text[64] = "";
        for (unsigned a = 0; a < AXES; a++)
            if (set >> a & 1)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? "," : "",
                         names[a]);
        must("mesh_comm", weft_mesh_comm(mesh, text, &comms[set - 1]));
    }
    return most < SETS ? most : SETS;
}

static void hold(unsigned groups, bool used)
{
    struct weft_mesh *meshes[MESHES_MAX];
    unsigned made = 0, count = 0;
    while (made < groups && count < MESHES_MAX) {
        struct weft_comm *comms[SETS];
        meshes[count] = mesh_make();
        const unsigned sets = mesh_fill(meshes[count++], groups - made, comms);
        if (used) use(comms, sets);
        made += sets;
    }
    expect(made == groups, "the number of groups");
    say("hold", made);
    while (count > 0) must("mesh_free", weft_mesh_free(meshes[--count]));
    say("gone", 0);
}

/* ---- one after the other ---- */
/* All but rank 0 free a group some groups later: their messages then reach a rank without the group. */
static void churn(unsigned groups)
{
    struct weft_comm *kept[LATER] = {NULL};
    for (unsigned i = 1; i <= groups; i++) {
        struct weft_comm *comm;
        must("split", weft_split(session, NULL, i % 3 == 0 ? (int)weft_rank(session) % 2 : 0,
                                 (int)weft_rank(session), &comm));
        struct weft_comm *const one[] = {comm};
        struct weft_request request = {{0}};
        if (i % 4 > 0) use(one, 1);
        /* all sends have been received */
        finish("barrier",
               weft_call_start(session, WEFT_CALL(.kind = WEFT_CALL_BARRIER, .comm = comm), &request),
               &request);
        struct weft_comm *freed = weft_rank(session) == 0 ? comm : kept[i % LATER];
        kept[i % LATER] = weft_rank(session) == 0 ? NULL : comm;
        must("comm_free", weft_comm_free(freed));
        if (i == groups / 100) say("churn", i);
    }
    say("churn", groups);
    for (unsigned i = 0; i < LATER; i++) must("comm_free", weft_comm_free(kept[i]));
}

/* ---- made by their members ---- */
static struct weft_comm *create_one(uint64_t random)
{
    uint32_t list[64], count = 0;
    const uint32_t ranks = weft_ranks(session), first = (uint32_t)(random >> 40) % ranks;
    struct weft_comm *comm = NULL;
    bool is_member = false;
    for (uint32_t i = 0; i < ranks; i++) {
        const uint32_t rank = (i + first) % ranks;
        if (random >> (8 + i) % 32 & 1) list[count++] = rank, is_member |= rank == weft_rank(session);
    }
    if (!is_member) return NULL;
    must("create", weft_comm_create(session, list, count, random & 1, &comm));
    expect(weft_comm_ranks(comm) == count, "the number of ranks");
    use(&comm, 1);
    return comm;
}

static void create(unsigned groups)
{
    struct weft_comm *kept[2] = {NULL};
    uint64_t random = 88172645463325252ull; /* the same on all ranks */
    for (unsigned i = 1; i <= groups; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        struct weft_comm *comm = create_one(random);
        must("comm_free", weft_comm_free(kept[i % 2]));
        kept[i % 2] = comm;
        if (i == groups / 10) say("create", i);
    }
    say("create", groups);
    must("comm_free", weft_comm_free(kept[0]));
    must("comm_free", weft_comm_free(kept[1]));
}

static int die(void)
{
    uint32_t list[64];
    struct weft_comm *comm = NULL;
    create(1);
    if (weft_rank(session) + 1 == weft_ranks(session)) raise(SIGKILL);
    for (uint32_t r = 0; r < weft_ranks(session); r++) list[r] = r;
    enum weft_status status = weft_comm_create(session, list, weft_ranks(session), 0, &comm);
    printf("create: %s: %s\n", weft_status_name(status), weft_error_text(session));
    weft_finalize(session);
    return 0;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* huge pages would round memory up by megabytes */
    if (argc < 2 || (argc < 3 && strcmp(argv[1], "die") != 0)) return 2;
    if (weft_init(NULL, &session) < 0) {
        printf("%s\n", weft_error_text(NULL));
        return 2;
    }
    struct weft_comm *all[1];
    must("split", weft_split(session, NULL, 0, (int)weft_rank(session), &all[0]));
    use(all, 1); /* allocates what all groups share */
    say("begun", 0);
    if (strcmp(argv[1], "die") == 0) return die();
    if (strcmp(argv[1], "create") == 0) create((unsigned)atoi(argv[2]));
    else if (strcmp(argv[1], "churn") == 0) churn((unsigned)atoi(argv[2]));
    else hold((unsigned)atoi(argv[2]), argc > 3 && strcmp(argv[3], "used") == 0);
    must("comm_free", weft_comm_free(all[0]));
    return weft_finalize(session) < 0 ? 2 : 0;
}
