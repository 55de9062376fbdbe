/* fake_nccl.h - an NCCL without devices, for tests: kernels on the streams of tests/lib/fake_cuda, which
 * exchange bytes in a shared file, so its ranks are processes or threads.
 *
 * weft loads libfake_nccl.so in place of NCCL (WEFT_NCCL); tests link it and call the functions below. It
 * makes mistakes visible:
 *   - A call answers ncclInProgress, and its kernel is queued when ncclCommGetAsyncError has answered
 *     ncclSuccess. Any other call on the communicator before that is refused, except abort.
 *   - A kernel waits on its stream for the kernels of the other ranks, or for an abort.
 *   - Refused: a second stream, a call after abort, ranks whose calls differ.
 *   - Sums are added from the last rank to the first, unlike the tree T.
 *
 * Communicators of ncclCommInitRank block: their kernels are queued at once. Only sums and averages of f32,
 * i32 and i64 have NCCL's results. */
#ifndef TEST_FAKE_NCCL_H
#define TEST_FAKE_NCCL_H

/* The n-th ncclGroupEnd from now on answers ncclInternalError; 0: none. */
void fake_nccl_fail_group(int n);
/* After n more groups ncclCommGetAsyncError answers ncclRemoteError; 0: never. */
void fake_nccl_fail_async(int n);
/* From now on ncclCommGetAsyncError of all communicators answers ncclRemoteError. */
void fake_nccl_break(void);
/* ncclCommInitRankConfig never ends on this rank. */
void fake_nccl_hang_init(void);
/* The version that ncclGetVersion answers. */
void fake_nccl_version(int version);
/* Number of groups queued, of sums, of refused calls, of communicators aborted and destroyed. */
int fake_nccl_groups(void);
int fake_nccl_sums(void);
int fake_nccl_refused(void);
int fake_nccl_aborted(void);
int fake_nccl_destroyed(void);

#endif
