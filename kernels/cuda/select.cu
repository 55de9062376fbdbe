/* select.cu - exact top-k by magnitude with the residual in the same pass; random-k; scatter.
 *
 * The radix select of select.c, cut so that nothing waits for the host and no order depends on the threads:
 *
 *     count     x = a*factor + b is written; the top 12 bits of |x| are counted                reads a, b
 *     boundary  the bucket that holds the k-th largest
 *     collect   a warp walks a strip of 2048 elements and lists, in order, all of that bucket and above;
 *               the boundary bucket's next 10 bits are counted                                 reads x
 *     boundary, count the last 9 bits, boundary: the k-th pattern, and how many of its ties are taken
 *     rank      each strip counts what lies above the pattern and on it; groups add up; one block scans them
 *     emit      each strip knows its place in the output: indices rise, ties go to the smaller index
 *
 * A strip's list holds the whole strip, so no input (all equal, all in one bucket) overflows it.
 * Lists are 16-bit offsets: 2 bytes of scratch an element, of which few are touched. Counters are integers:
 * atomic sums of them are the same in any order. Where a warp's elements fall into one bucket (zeros), one
 * lane adds for all. */
#include "kernels/cuda/device.h"
#include "kernels/philox.h"

namespace
{

constexpr unsigned TOP_BUCKETS = 4096, MIDDLE_BUCKETS = 1024, LAST_BUCKETS = 512, TOP_SHIFT = 19,
                   MIDDLE_SHIFT = 9;
constexpr unsigned STRIP = 2048, GROUP = 256, COUNT_THREADS = 1024, SCAN_THREADS = 1024;
/* Blocks that end by adding their buckets to the global ones: two of these for each multiprocessor of a large
 * device. */
constexpr size_t COUNT_BLOCKS = 264, COLLECT_BLOCKS = 1056;

/* Scratch, in this order; the first part is zeroed by every call. */
struct progress {
    uint32_t top[TOP_BUCKETS], middle[MIDDLE_BUCKETS], last[LAST_BUCKETS];
    uint32_t prefix; /* bits found so far of the k-th largest pattern */
    uint32_t wanted; /* elements still wanted from among those with that prefix */
};

struct layout {
    size_t strips, groups;
    size_t group_above, group_ties, listed, above, ties, offsets, bytes; /* places in the scratch */
    size_t zeroed;
    explicit layout(size_t count) : strips(pieces(count, STRIP)), groups(pieces(strips, GROUP))
    {
        group_above = sizeof(progress);
        group_ties = group_above + groups * sizeof(uint32_t);
        zeroed = listed = group_ties + groups * sizeof(uint32_t);
        above = listed + strips * sizeof(uint32_t);
        ties = above + strips * sizeof(uint32_t);
        offsets = ties + strips * sizeof(uint32_t);
        bytes = offsets + strips * STRIP * sizeof(uint16_t);
    }
};

struct scratch {
    progress *state;
    uint32_t *group_above, *group_ties; /* (groups,): sums, then what lies before */
    uint32_t *listed, *above, *ties;    /* (strips,) */
    uint16_t *offsets;                  /* (strips, STRIP): within the strip, rising */
    scratch(void *workspace, const layout &l)
    {
        uint8_t *at = (uint8_t *)workspace;
        state = (progress *)workspace;
        group_above = (uint32_t *)(at + l.group_above);
        group_ties = (uint32_t *)(at + l.group_ties);
        listed = (uint32_t *)(at + l.listed);
        above = (uint32_t *)(at + l.above);
        ties = (uint32_t *)(at + l.ties);
        offsets = (uint16_t *)(at + l.offsets);
    }
};

/* One more in `bucket`; all lanes of the warp call, those without an element with mine false. */
__device__ inline void add_one(uint32_t *buckets, uint32_t bucket, bool mine)
{
    const uint32_t voters = __ballot_sync(ALL, mine);
    if (voters == 0) return;
    const int leader = __ffs((int)voters) - 1;
    const uint32_t first = __shfl_sync(ALL, bucket, leader);
    if (__ballot_sync(ALL, mine && bucket != first) == 0) {
        if ((int)lane_number() == leader) atomicAdd(buckets + bucket, (uint32_t)__popc(voters));
    } else if (mine) {
        atomicAdd(buckets + bucket, 1u);
    }
}

__device__ inline void add_to_all(uint32_t *shared_buckets, const uint32_t *own, unsigned buckets)
{
    for (unsigned b = threadIdx.x; b < buckets; b += blockDim.x)
        if (own[b] > 0) atomicAdd(shared_buckets + b, own[b]);
}

__device__ inline void clear(uint32_t *buckets, unsigned count)
{
    for (unsigned b = threadIdx.x; b < count; b += blockDim.x) buckets[b] = 0;
    __syncthreads();
}

/* FUSED: x = a*factor + b is made here; otherwise a is x. All threads make the same number of rounds. */
template <bool FUSED, int N>
__global__ void __launch_bounds__(COUNT_THREADS)
    count_kernel(float *out, const float *a, float factor, const float *b, size_t packs, size_t count,
                 progress *state, uint32_t *max_bits)
{
    __shared__ uint32_t own[TOP_BUCKETS];
    uint32_t max = 0;
    clear(own, TOP_BUCKETS);
    for (size_t first = (size_t)blockIdx.x * blockDim.x; first < packs; first += thread_total()) {
        const size_t p = first + threadIdx.x;
        pack<float, N> x = {};
        if (p < packs) {
            x = load<N>(a + p * N);
            if (FUSED) {
                const pack<float, N> y = load<N>(b + p * N);
                for (int j = 0; j < N; j++) x.v[j] = canonical(x.v[j] * factor + y.v[j]);
                store<N>(out + p * N, x);
            }
        }
        for (int j = 0; j < N; j++) {
            max = larger(max, magnitude(x.v[j]));
            add_one(own, magnitude(x.v[j]) >> TOP_SHIFT, p < packs);
        }
    }
    /* what is left below a pack: fewer than N elements, by one warp */
    const size_t rest = packs * N + threadIdx.x;
    if (blockIdx.x == 0 && threadIdx.x < WARP) {
        float x = 0;
        if (rest < count) {
            x = a[rest];
            if (FUSED) out[rest] = x = canonical(x * factor + b[rest]);
        }
        max = larger(max, magnitude(x));
        add_one(own, magnitude(x) >> TOP_SHIFT, rest < count);
    }
    __syncthreads();
    add_to_all(state->top, own, TOP_BUCKETS);
    if (max_bits) raise(max_bits, max);
}

/* The sum over the threads before this one (exclusive), and of all; by all threads of the block. */
__device__ inline uint32_t scan_block(uint32_t mine, uint32_t *total)
{
    __shared__ uint32_t of_warps[SCAN_THREADS / WARP];
    const unsigned lane = lane_number(), warp = threadIdx.x / WARP;
    uint32_t sum = mine;
    for (unsigned step = 1; step < WARP; step *= 2) {
        const uint32_t other = __shfl_up_sync(ALL, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == WARP - 1) of_warps[warp] = sum;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (unsigned w = 0; w < blockDim.x / WARP; w++) {
        if (w < warp) before += of_warps[w];
        all += of_warps[w];
    }
    __syncthreads(); /* of_warps may be written again */
    *total = all;
    return before + sum - mine;
}

/* Walks down from the highest bucket to the one that holds the wanted-th; one block. */
template <unsigned BUCKETS>
__global__ void __launch_bounds__(SCAN_THREADS)
    boundary_kernel(progress *state, const uint32_t *buckets, uint32_t k)
{
    constexpr unsigned EACH = BUCKETS > SCAN_THREADS ? BUCKETS / SCAN_THREADS : 1;
    const uint32_t wanted = BUCKETS == TOP_BUCKETS ? k : state->wanted;
    const unsigned first = threadIdx.x * EACH; /* counted from the top */
    uint32_t mine = 0, total;
    for (unsigned b = first; b < first + EACH && b < BUCKETS; b++) mine += buckets[BUCKETS - 1 - b];
    uint32_t before = scan_block(mine, &total);
    __syncthreads();                                        /* every thread has read state->wanted */
    if (before >= wanted || before + mine < wanted) return; /* it is not among mine */
    for (unsigned b = first; b < first + EACH; b++) {
        const uint32_t here = buckets[BUCKETS - 1 - b];
        if (before + here >= wanted) {
            state->prefix = (BUCKETS == TOP_BUCKETS ? 0 : state->prefix) * BUCKETS + (BUCKETS - 1 - b);
            state->wanted = wanted - before;
            return;
        }
        before += here;
    }
}

__device__ inline uint32_t lanes_below()
{
    return (1u << lane_number()) - 1u;
}

/* A warp a strip, eight loads at a time. */
__global__ void __launch_bounds__(THREADS)
    collect_kernel(const float *x, size_t count, size_t strips, scratch s)
{
    __shared__ uint32_t own[MIDDLE_BUCKETS];
    const uint32_t prefix = s.state->prefix;
    clear(own, MIDDLE_BUCKETS);
    for (size_t strip = thread_number() / WARP; strip < strips; strip += thread_total() / WARP) {
        uint16_t *offsets = s.offsets + strip * STRIP;
        uint32_t listed = 0;
        for (unsigned step = 0; step < STRIP; step += 8 * WARP) {
            uint32_t bits[8];
            for (unsigned t = 0; t < 8; t++) {
                const size_t i = strip * STRIP + step + t * WARP + lane_number();
                bits[t] = i < count ? magnitude(x[i]) : 0;
            }
            for (unsigned t = 0; t < 8; t++) {
                const unsigned offset = step + t * WARP + lane_number();
                const bool inside = strip * STRIP + offset < count;
                const bool candidate = inside && bits[t] >> TOP_SHIFT >= prefix;
                const uint32_t voters = __ballot_sync(ALL, candidate);
                if (candidate) offsets[listed + (uint32_t)__popc(voters & lanes_below())] = (uint16_t)offset;
                if (voters != 0)
                    add_one(own, bits[t] >> MIDDLE_SHIFT & (MIDDLE_BUCKETS - 1),
                            inside && bits[t] >> TOP_SHIFT == prefix);
                listed += (uint32_t)__popc(voters);
            }
        }
        if (lane_number() == 0) s.listed[strip] = listed;
    }
    __syncthreads();
    add_to_all(s.state->middle, own, MIDDLE_BUCKETS);
}

/* The pattern of entry c of the strip's list; what has no entry counts as below everything. */
__device__ inline uint32_t listed_bits(const float *x, size_t strip, const scratch &s, uint32_t listed,
                                       uint32_t c)
{
    return c < listed ? magnitude(x[strip * STRIP + s.offsets[strip * STRIP + c]]) : 0;
}

__global__ void __launch_bounds__(THREADS) last_bits_kernel(const float *x, size_t strips, scratch s)
{
    __shared__ uint32_t own[LAST_BUCKETS];
    const uint32_t prefix = s.state->prefix;
    clear(own, LAST_BUCKETS);
    for (size_t strip = thread_number() / WARP; strip < strips; strip += thread_total() / WARP) {
        const uint32_t listed = s.listed[strip];
        for (uint32_t first = 0; first < listed; first += WARP) {
            const uint32_t c = first + lane_number(), bits = listed_bits(x, strip, s, listed, c);
            add_one(own, bits & (LAST_BUCKETS - 1), c < listed && bits >> MIDDLE_SHIFT == prefix);
        }
    }
    __syncthreads();
    add_to_all(s.state->last, own, LAST_BUCKETS);
}

__global__ void __launch_bounds__(THREADS) rank_kernel(const float *x, size_t strips, scratch s)
{
    const uint32_t kth = s.state->prefix;
    const size_t strip = thread_number() / WARP;
    if (strip >= strips) return;
    const uint32_t listed = s.listed[strip];
    uint32_t above = 0, ties = 0;
    for (uint32_t first = 0; first < listed; first += WARP) {
        const uint32_t c = first + lane_number(), bits = listed_bits(x, strip, s, listed, c);
        above += (uint32_t)__popc(__ballot_sync(ALL, c < listed && bits > kth));
        ties += (uint32_t)__popc(__ballot_sync(ALL, c < listed && bits == kth));
    }
    if (lane_number() != 0) return;
    s.above[strip] = above;
    s.ties[strip] = ties;
    if (above > 0) atomicAdd(s.group_above + strip / GROUP, above);
    if (ties > 0) atomicAdd(s.group_ties + strip / GROUP, ties);
}

/* Sums of groups become what lies before each group; one block. */
__global__ void __launch_bounds__(SCAN_THREADS) groups_kernel(size_t groups, scratch s)
{
    uint32_t above_before = 0, ties_before = 0;
    for (size_t first = 0; first < groups; first += blockDim.x) {
        const size_t g = first + threadIdx.x;
        uint32_t above_total, ties_total;
        const uint32_t above = scan_block(g < groups ? s.group_above[g] : 0, &above_total);
        const uint32_t ties = scan_block(g < groups ? s.group_ties[g] : 0, &ties_total);
        if (g < groups) {
            s.group_above[g] = above_before + above;
            s.group_ties[g] = ties_before + ties;
        }
        above_before += above_total;
        ties_before += ties_total;
    }
}

__device__ inline uint32_t warp_sum(uint32_t mine)
{
    for (unsigned step = WARP / 2; step > 0; step /= 2) mine += __shfl_xor_sync(ALL, mine, step);
    return mine;
}

/* values_out and taken may be NULL; what is picked becomes 0 in `taken`, which is x. */
__global__ void __launch_bounds__(THREADS) emit_kernel(uint32_t *indices_out, float *values_out,
                                                       const float *x, float *taken, size_t strips, scratch s)
{
    const uint32_t kth = s.state->prefix, wanted = s.state->wanted;
    const size_t strip = thread_number() / WARP;
    if (strip >= strips) return;
    if (s.above[strip] == 0 && s.ties[strip] == 0) return;
    uint32_t above = 0, ties = 0;
    for (size_t before = strip / GROUP * GROUP + lane_number(); before < strip; before += WARP) {
        above += s.above[before];
        ties += s.ties[before];
    }
    above = warp_sum(above) + s.group_above[strip / GROUP];
    ties = warp_sum(ties) + s.group_ties[strip / GROUP];
    const uint32_t listed = s.listed[strip];
    for (uint32_t first = 0; first < listed; first += WARP) {
        const uint32_t c = first + lane_number(), bits = listed_bits(x, strip, s, listed, c);
        const bool larger_one = c < listed && bits > kth, tie = c < listed && bits == kth;
        const uint32_t larger_ones = __ballot_sync(ALL, larger_one), all_ties = __ballot_sync(ALL, tie);
        const uint32_t above_here = above + (uint32_t)__popc(larger_ones & lanes_below());
        const uint32_t ties_here = ties + (uint32_t)__popc(all_ties & lanes_below());
        if (larger_one || (tie && ties_here < wanted)) {
            const uint32_t place = above_here + (ties_here < wanted ? ties_here : wanted);
            const size_t i = strip * STRIP + s.offsets[strip * STRIP + c];
            indices_out[place] = (uint32_t)i;
            if (values_out) values_out[place] = x[i];
            if (taken) taken[i] = 0.0f;
        }
        above += (uint32_t)__popc(larger_ones);
        ties += (uint32_t)__popc(all_ties);
    }
}

/* Everything after the first count: x is written, state->top counted. */
enum weft_status after_count(uint32_t *indices_out, float *values_out, const float *x, float *taken,
                             size_t count, uint32_t k, const layout &l, const scratch &s,
                             weft_cuda_stream stream)
{
    const size_t a_warp_each = pieces(l.strips, THREADS / WARP), some = at_most(a_warp_each, COLLECT_BLOCKS);
    enum weft_status status =
        launch(stream, 1, SCAN_THREADS, boundary_kernel<TOP_BUCKETS>, s.state, s.state->top, k);
    if (status == WEFT_OK) status = launch(stream, some, THREADS, collect_kernel, x, count, l.strips, s);
    if (status == WEFT_OK)
        status =
            launch(stream, 1, SCAN_THREADS, boundary_kernel<MIDDLE_BUCKETS>, s.state, s.state->middle, 0u);
    if (status == WEFT_OK) status = launch(stream, some, THREADS, last_bits_kernel, x, l.strips, s);
    if (status == WEFT_OK)
        status = launch(stream, 1, SCAN_THREADS, boundary_kernel<LAST_BUCKETS>, s.state, s.state->last, 0u);
    if (status == WEFT_OK) status = launch(stream, a_warp_each, THREADS, rank_kernel, x, l.strips, s);
    if (status == WEFT_OK) status = launch(stream, 1, SCAN_THREADS, groups_kernel, l.groups, s);
    if (status == WEFT_OK)
        status =
            launch(stream, a_warp_each, THREADS, emit_kernel, indices_out, values_out, x, taken, l.strips, s);
    return status;
}

template <bool FUSED>
enum weft_status count_top(float *out, const float *a, float factor, const float *b, size_t count,
                           uint32_t *max_bits, bool wide, progress *state, weft_cuda_stream stream)
{
    const size_t width = wide ? 4 : 1, packs = count / width;
    const size_t blocks = at_most(packs == 0 ? 1 : pieces(packs, COUNT_THREADS), COUNT_BLOCKS);
    return wide ? launch(stream, blocks, COUNT_THREADS, count_kernel<FUSED, 4>, out, a, factor, b, packs,
                         count, state, max_bits)
                : launch(stream, blocks, COUNT_THREADS, count_kernel<FUSED, 1>, out, a, factor, b, packs,
                         count, state, max_bits);
}

bool has_invalid_shape(size_t count, size_t k)
{
    return k < 1 || k > count || count > UINT32_MAX;
}

/* ---- random-k, and back from sparse to dense ---- */

/* sampling.c, a thread a stratum. */
__global__ void __launch_bounds__(THREADS)
    sample_strata_kernel(uint32_t *indices_out, uint64_t count, uint64_t k, struct weft_noise noise)
{
    const uint64_t j = thread_number();
    if (j >= k) return;
    const uint64_t first = j * count / k, width = (j + 1) * count / k - first;
    const uint32_t counter[4] = {(uint32_t)(j / 4), 0, (uint32_t)noise.step, (uint32_t)(noise.step >> 32)};
    uint32_t words[4];
    philox(counter, noise.key, words);
    indices_out[j] = (uint32_t)(first + (words[j % 4] * width >> 32));
}

__global__ void __launch_bounds__(THREADS)
    take_kernel(float *values_out, float *x, const uint32_t *indices, size_t k)
{
    const size_t j = thread_number();
    if (j >= k) return;
    values_out[j] = x[indices[j]];
    x[indices[j]] = 0.0f;
}

__global__ void __launch_bounds__(THREADS)
    scatter_kernel(float *out, const uint32_t *indices, const float *values, float factor, size_t k)
{
    const size_t j = thread_number();
    if (j < k) out[indices[j]] = canonical(values[j] * factor);
}

} // namespace

size_t weft_cuda_select_workspace(size_t count)
{
    return layout(count).bytes;
}

enum weft_status weft_cuda_select_top(uint32_t *indices_out, const float *x, size_t count, size_t k,
                                      void *workspace, weft_cuda_stream stream)
{
    const layout l(count);
    const scratch s(workspace, l);
    if (has_invalid_shape(count, k)) return WEFT_ERR_INVALID;
    enum weft_status status = status_of(cudaMemsetAsync(workspace, 0, l.zeroed, stream));
    if (status == WEFT_OK)
        status = count_top<false>(nullptr, x, 1.0f, nullptr, count, nullptr, aligned(x), s.state, stream);
    if (status == WEFT_OK)
        status = after_count(indices_out, nullptr, x, nullptr, count, (uint32_t)k, l, s, stream);
    return status;
}

enum weft_status weft_cuda_scale_add_select_top_f32(uint32_t *indices_out, float *values_out, float *out,
                                                    const float *a, float factor, const float *b,
                                                    size_t count, size_t k, uint32_t *max_bits,
                                                    void *workspace, weft_cuda_stream stream)
{
    const layout l(count);
    const scratch s(workspace, l);
    if (has_invalid_shape(count, k)) return WEFT_ERR_INVALID;
    enum weft_status status = status_of(cudaMemsetAsync(workspace, 0, l.zeroed, stream));
    if (status == WEFT_OK)
        status = count_top<true>(out, a, factor, b, count, max_bits, aligned(out, a, b), s.state, stream);
    if (status == WEFT_OK)
        status = after_count(indices_out, values_out, out, out, count, (uint32_t)k, l, s, stream);
    return status;
}

enum weft_status weft_cuda_sample_strata(uint32_t *indices_out, uint64_t count, uint64_t k,
                                       const struct weft_noise *noise, weft_cuda_stream stream)
{
    if (k > count || count > UINT32_MAX) return WEFT_ERR_INVALID;
    return launch(stream, pieces(k, THREADS), THREADS, sample_strata_kernel, indices_out, count, k, *noise);
}

enum weft_status weft_cuda_take_f32(float *values_out, float *x, const uint32_t *indices, size_t k,
                                    weft_cuda_stream stream)
{
    return launch(stream, pieces(k, THREADS), THREADS, take_kernel, values_out, x, indices, k);
}

enum weft_status weft_cuda_scatter_f32(float *out, size_t count, const uint32_t *indices, const float *values,
                                       float factor, size_t k, weft_cuda_stream stream)
{
    const enum weft_status status = status_of(cudaMemsetAsync(out, 0, count * sizeof *out, stream));
    return status == WEFT_OK
               ? launch(stream, pieces(k, THREADS), THREADS, scatter_kernel, out, indices, values, factor, k)
               : status;
}
