/* test_privileges.c - after weft_init a rank loses process_vm_readv, or other ranks lose it for that
 * rank's memory. Operations on ordinary memory continue with right results and one warning for each peer.
 * Real processes: two and four workers, one shard. */
#include "tests/lib/check.h"

#include <errno.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/fleet.h"
#include "weft/weft.h"

#define NOBODY 65534u
#define LARGEST (1u << 20) /* elements: 4 MiB */
#define TEXT_BYTES (64u << 10)

enum loss { DROP_USER, DROP_USER_STAY_DUMPABLE, UNDUMPABLE, FILTER };
static struct {
    enum loss loss;
    uint32_t rank; /* the rank that changes */
} change;

static bool filter_out_cma(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), /* the number of the system call */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof rules[0], .filter = rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

static bool become_user_nobody(void)
{
    return setgroups(0, NULL) == 0 && setgid(NOBODY) == 0 && setuid(NOBODY) == 0;
}

static bool lose(void)
{
    switch (change.loss) {
    case DROP_USER: return become_user_nobody();
    case DROP_USER_STAY_DUMPABLE: return become_user_nobody() && prctl(PR_SET_DUMPABLE, 1) == 0;
    case UNDUMPABLE: return prctl(PR_SET_DUMPABLE, 0) == 0;
    case FILTER: return filter_out_cma();
    }
    return false;
}

struct buffers {
    float *in, *out; /* of malloc */
};

static bool waits(enum weft_status status, struct weft_request *request)
{
    return status >= 0 && weft_wait(request, 0) >= 0;
}

static bool all_equal(const float *values, size_t count, float wanted)
{
    for (size_t i = 0; i < count; i++)
        if (values[i] != wanted) return false;
    return true;
}

static void fill(float *values, size_t count, float value)
{
    for (size_t i = 0; i < count; i++) values[i] = value;
}

static bool sums_well(struct weft_session *session, const struct buffers *b, uint32_t count)
{
    const uint32_t ranks = weft_ranks(session);
    const float sum = (float)(ranks * (ranks + 1) / 2);
    struct weft_request request = {{0}};
    fill(b->in, count, (float)weft_rank(session) + 1);
    fill(b->out, count, 0);
    if (!waits(weft_all_reduce(session, b->in, b->out, count, WEFT_F32, WEFT_SUM, &request), &request))
        return false;
    if (!all_equal(b->out, count, sum)) return false;
    if (!waits(weft_all_reduce(session, b->in, b->in, count, WEFT_F32, WEFT_SUM, &request), &request))
        return false;
    return all_equal(b->in, count, sum);
}

static bool copies_well(struct weft_session *session, const struct buffers *b, uint32_t count)
{
    const uint32_t ranks = weft_ranks(session), rank = weft_rank(session), next = (rank + 1) % ranks,
                   before = (rank + ranks - 1) % ranks;
    struct weft_request request = {{0}}, sent = {{0}};
    fill(b->in, count, (float)rank + 1);
    fill(b->out, count, 0);
    if (weft_recv(session, b->out, count, WEFT_F32, before, &request) < 0) return false;
    if (!waits(weft_send(session, b->in, count, WEFT_F32, next, &sent), &sent) || weft_wait(&request, 0) < 0)
        return false;
    if (!all_equal(b->out, count, (float)before + 1)) return false;
    if (!waits(weft_broadcast(session, b->in, count, WEFT_F32, ranks - 1, &request), &request)) return false;
    if (!all_equal(b->in, count, (float)ranks)) return false;
    fill(b->in, count, (float)rank + 1);
    const uint32_t piece = count / ranks;
    if (!waits(weft_all_gather(session, b->in, b->out, piece, WEFT_F32, &request), &request)) return false;
    for (uint32_t r = 0; r < ranks; r++)
        if (!all_equal(b->out + r * piece, piece, (float)r + 1)) return false;
    if (!waits(weft_all_to_all(session, b->in, b->out, piece, WEFT_F32, &request), &request)) return false;
    for (uint32_t r = 0; r < ranks; r++)
        if (!all_equal(b->out + r * piece, piece, (float)r + 1)) return false;
    return true;
}

static bool steps_well(struct weft_session *session, struct weft_tensor *tensor, const struct buffers *b,
                       uint64_t step)
{
    const uint32_t ranks = weft_ranks(session);
    struct weft_request request = {{0}};
    fill(b->in, LARGEST, (float)weft_rank(session) + 1);
    if (weft_step_begin(session, &(struct weft_step){.step = step, .lr = 1, .weight = 1}) < 0) return false;
    if (!waits(weft_push_pull(tensor, b->in, b->out, &request), &request) || weft_step_end(session) < 0)
        return false;
    return all_equal(b->out, LARGEST, (float)(ranks + 1) / 2);
}

static bool all_well(struct weft_session *session, struct weft_tensor *tensor, const struct buffers *b,
                     uint64_t step)
{
    for (uint32_t count = 256; count <= LARGEST; count *= 4)
        if (!sums_well(session, b, count) || !copies_well(session, b, count)) return false;
    return steps_well(session, tensor, b, step);
}

static bool declare(struct weft_session *session, struct weft_tensor **tensor)
{
    struct weft_tensor_options options;
    weft_tensor_options_init(&options);
    options.name = "fc1";
    options.dim_count = 1;
    options.dims[0] = LARGEST;
    options.optimizer = "none";
    options.mode = WEFT_MODE_SERVER;
    return weft_declare(session, &options, tensor) >= 0;
}

/* Lines in the file of stderr that report a refusal for peer `id`; UINT32_MAX: for any peer. */
static uint32_t warnings(int file, uint32_t peer)
{
    static char text[TEXT_BYTES];
    char wanted[64] = "process_vm_";
    uint32_t count = 0;
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    text[bytes > 0 ? bytes : 0] = 0;
    if (peer != UINT32_MAX) snprintf(wanted, sizeof wanted, " peer %u (process ", peer);
    for (const char *at = text; (at = strstr(at, wanted)); at++) count++;
    return count;
}

static int fails(struct weft_session *session, const char *what)
{
    dprintf(STDOUT_FILENO, "rank %u: %s: %s\n", weft_rank(session), what, weft_error_text(session));
    return 2;
}

static int worker(struct fleet *fleet, uint32_t rank)
{
    struct weft_session *session;
    struct weft_tensor *tensor;
    struct buffers b = {malloc(LARGEST * 4), malloc(LARGEST * 4)};
    int file = memfd_create("stderr", MFD_CLOEXEC);
    if (!b.in || !b.out || file < 0 || dup2(file, STDERR_FILENO) < 0) return 1;
    if (fleet_join(fleet, rank, 60000, &session) != 0) return 1;
    fill(b.out, LARGEST, 0);
    if (!declare(session, &tensor) || weft_tensor_init(tensor, b.out) < 0) return fails(session, "declare");
    if (!all_well(session, tensor, &b, 1)) return fails(session, "before the change");
    if (warnings(file, UINT32_MAX) != 0) return fails(session, "a warning before the change");
    if (rank == change.rank && !lose()) return fails(session, strerror(errno));
    for (uint64_t step = 2; step <= 3; step++)
        if (!all_well(session, tensor, &b, step)) return fails(session, "after the change");
    if (rank == change.rank && warnings(file, UINT32_MAX) == 0) return fails(session, "no warning");
    for (uint32_t peer = 0; peer < FLEET_MAX; peer++)
        if (warnings(file, peer) > 1) return fails(session, "more than one warning of a peer");
    weft_finalize(session);
    free(b.in);
    free(b.out);
    return 0;
}

static void check(uint32_t ranks, uint32_t changes, enum loss loss)
{
    struct fleet_result result;
    change.loss = loss;
    change.rank = changes;
    assert_true(fleet_run(ranks, 1, worker, &result, NULL));
}

static void needs_root(void)
{
    if (geteuid() != 0) skip();
}

static void test_first_of_two_drops_user(void **state)
{
    needs_root();
    check(2, 0, DROP_USER);
}

static void test_second_of_two_drops_user(void **state)
{
    needs_root();
    check(2, 1, DROP_USER_STAY_DUMPABLE);
}

static void test_one_of_four_drops_user(void **state)
{
    needs_root();
    check(4, 2, DROP_USER);
}

static void test_filter(void **state)
{
    check(2, 0, FILTER);
    check(4, 3, FILTER);
}

static void test_undumpable(void **state) { check(2, 1, UNDUMPABLE); }

/* Without privileges the other ranks are refused too. */
static void test_undumpable_among_nobodies(void **state)
{
    needs_root();
    pid_t child = fork();
    if (child == 0) {
        struct fleet_result result;
        change.loss = UNDUMPABLE;
        change.rank = 1;
        if (!become_user_nobody() || prctl(PR_SET_DUMPABLE, 1) != 0) _exit(3);
        bool fine = fleet_run(2, 1, worker, &result, NULL);
        change.rank = 0;
        _exit(fine && fleet_run(4, 1, worker, &result, NULL) ? 0 : 4);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_of_two_drops_user), cmocka_unit_test(test_second_of_two_drops_user),
        cmocka_unit_test(test_one_of_four_drops_user),  cmocka_unit_test(test_filter),
        cmocka_unit_test(test_undumpable),              cmocka_unit_test(test_undumpable_among_nobodies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
