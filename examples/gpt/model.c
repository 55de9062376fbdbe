/* model.c - see model.h. The heavy arithmetic is matrix products, by BLAS. */
#include "model.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parts of a block, behind the two of the embedding. */
enum { QKV, PROJECT, UP, DOWN, VECTOR, BLOCK_PARTS };
enum { BYTES, PLACES, FIRST_BLOCK };

/* Where a block's vector has its norms and biases, in units of width. */
enum {
    NORM1 = 0,
    NORM1_BIAS = 1,
    NORM2 = 2,
    NORM2_BIAS = 3,
    QKV_BIAS = 4,
    PROJECT_BIAS = 7,
    UP_BIAS = 8,
    DOWN_BIAS = 12,
    VECTOR_WIDTHS = 13
};

/* ---- memory ---- */

static struct gpt_part *block_part(struct gpt *gpt, uint32_t block, uint32_t which)
{
    return &gpt->parts[FIRST_BLOCK + block * BLOCK_PARTS + which];
}

static void add_part(struct gpt *gpt, uint32_t layer, const char *name, uint32_t rows, uint32_t cols)
{
    struct gpt_part *part = &gpt->parts[gpt->part_count++];
    *part = (struct gpt_part){.layer = layer, .rows = rows, .cols = cols};
    part->count = (uint64_t)rows * (cols ? cols : 1);
    snprintf(part->name, sizeof part->name, "%u.%s", (unsigned)layer, name);
}

static float *floats(uint64_t count, bool *well)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, count * sizeof(float)) != 0) {
        *well = false;
        return NULL;
    }
    memset(memory, 0, count * sizeof(float));
    return memory;
}

static bool create_block(struct gpt *gpt, struct gpt_block *block)
{
    const uint64_t rows = gpt->rows_max, width = gpt->shape.width;
    bool well = true;
    float **wide[] = {&block->in, &block->norm1, &block->mixed, &block->sum, &block->norm2};
    float **fourfold[] = {&block->up, &block->gate, &block->act};
    float **scalars[] = {&block->mean1, &block->scale1, &block->mean2, &block->scale2};
    for (int i = 0; i < 5; i++) *wide[i] = floats(rows * width, &well);
    for (int i = 0; i < 3; i++) *fourfold[i] = floats(rows * width * 4, &well);
    for (int i = 0; i < 4; i++) *scalars[i] = floats(rows, &well);
    block->qkv = floats(rows * width * 3, &well);
    block->share = floats(rows * gpt->shape.heads * gpt->shape.length, &well);
    return well;
}

static bool create_rest(struct gpt *gpt)
{
    const uint64_t rows = gpt->rows_max, width = gpt->shape.width;
    bool well = true;
    gpt->out = floats(rows * width, &well);
    gpt->out_norm = floats(rows * width, &well);
    gpt->out_mean = floats(rows, &well);
    gpt->out_scale = floats(rows, &well);
    gpt->logits = floats(rows * GPT_BYTES, &well);
    gpt->d_out = floats(rows * width, &well);
    gpt->d_width = floats(rows * width, &well);
    gpt->d_qkv = floats(rows * width * 3, &well);
    gpt->d_four = floats(rows * width * 4, &well);
    gpt->d_share = floats((uint64_t)gpt->shape.length * gpt->shape.length, &well);
    gpt->d_tied = floats(GPT_BYTES * width, &well);
    uint64_t most = 0;
    for (uint32_t i = 0; gpt->shape.bf16 && i < gpt->part_count; i++) {
        struct gpt_part *part = &gpt->parts[i];
        part->half = calloc(part->count, sizeof *part->half);
        well = well && part->half;
        most = part->count > most ? part->count : most;
    }
    for (int i = 0; gpt->shape.bf16 && i < 2; i++) gpt->expanded[i] = floats(most, &well);
    return well;
}

bool gpt_create(struct gpt *gpt, const struct gpt_shape *shape, uint32_t samples_max)
{
    const uint32_t width = shape->width;
    *gpt = (struct gpt){.shape = *shape, .samples_max = samples_max, .rows_max = samples_max * shape->length};
    add_part(gpt, 0, "bytes", GPT_BYTES, width);
    add_part(gpt, 0, "places", shape->length, width);
    for (uint32_t l = 1; l <= shape->blocks; l++) {
        add_part(gpt, l, "qkv", 3 * width, width);
        add_part(gpt, l, "project", width, width);
        add_part(gpt, l, "up", 4 * width, width);
        add_part(gpt, l, "down", width, 4 * width);
        add_part(gpt, l, "vector", VECTOR_WIDTHS * width, 0);
    }
    add_part(gpt, shape->blocks + 1, "norm", 2 * width, 0);
    bool well = true;
    for (uint32_t b = 0; b < shape->blocks; b++) well = create_block(gpt, &gpt->blocks[b]) && well;
    if (create_rest(gpt) && well) return true;
    gpt_free(gpt);
    return false;
}

void gpt_free(struct gpt *gpt)
{
    for (uint32_t b = 0; b < gpt->shape.blocks; b++) {
        struct gpt_block *block = &gpt->blocks[b];
        float *all[] = {block->in,    block->norm1,  block->mixed, block->sum,   block->norm2,
                        block->gate,  block->act,    block->qkv,   block->up,    block->share,
                        block->mean1, block->scale1, block->mean2, block->scale2};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    }
    float *all[] = {gpt->out,    gpt->out_norm,    gpt->out_mean,   gpt->out_scale, gpt->logits,
                    gpt->d_out,  gpt->d_width,     gpt->d_qkv,      gpt->d_four,    gpt->d_share,
                    gpt->d_tied, gpt->expanded[0], gpt->expanded[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    for (uint32_t i = 0; i < gpt->part_count; i++) free(gpt->parts[i].half);
    *gpt = (struct gpt){0};
}

/* ---- first weights ---- */

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Sum of four uniform numbers, scaled to the deviation: close to normal, and exact on every machine. */
static void fill_random(float *out, uint64_t count, float deviation, uint64_t *state)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = random_next(state);
        int32_t sum = 0;
        for (int k = 0; k < 4; k++) sum += (int32_t)(bits >> 16 * k & 0xffff);
        out[i] = (float)(sum - 2 * 65535) * (deviation / 37837.0f);
    }
}

void gpt_init(struct gpt *gpt, uint64_t seed)
{
    const uint32_t width = gpt->shape.width;
    /* what a block adds to the stream shrinks with the number of blocks, so that the sum does not grow */
    const float added = 0.02f / sqrtf(2.0f * (float)gpt->shape.blocks);
    uint64_t state = seed;
    for (uint32_t i = 0; i < gpt->part_count; i++) {
        struct gpt_part *part = &gpt->parts[i];
        const uint32_t which = i >= FIRST_BLOCK ? (i - FIRST_BLOCK) % BLOCK_PARTS : QKV;
        memset(part->master, 0, part->count * sizeof(float));
        if (part->cols)
            fill_random(part->master, part->count, which == PROJECT || which == DOWN ? added : 0.02f, &state);
        for (uint32_t k = 0; !part->cols && k < width; k++) {
            part->master[NORM1 * width + k] = 1;
            if (part->count > 2 * width) part->master[NORM2 * width + k] = 1;
        }
    }
    for (uint32_t layer = 0; layer <= gpt->shape.blocks + 1; layer++) gpt_refresh(gpt, layer);
}

/* ---- working weights ---- */

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >>
                      16); /* to nearest, ties to even; weights are finite */
}

void gpt_refresh(struct gpt *gpt, uint32_t layer)
{
    for (uint32_t i = 0; gpt->shape.bf16 && i < gpt->part_count; i++) {
        struct gpt_part *part = &gpt->parts[i];
        for (uint64_t k = 0; part->layer == layer && k < part->count; k++)
            part->half[k] = to_bf16(part->master[k]);
    }
}

/* The weights that a layer computes with. bf16: an f32 copy of the working copy in expanded[place]. */
static const float *working(struct gpt *gpt, const struct gpt_part *part, int place)
{
    if (!gpt->shape.bf16) return part->master;
    float *out = gpt->expanded[place];
    for (uint64_t k = 0; k < part->count; k++) {
        uint32_t bits = (uint32_t)part->half[k] << 16;
        memcpy(&out[k], &bits, sizeof bits);
    }
    return out;
}

/* ---- operations ---- */

/* out (rows, outs) = in (rows, ins) * weights (outs, ins) transposed + bias (outs,) */
static void linear(float *out, const float *in, const float *weights, const float *bias, uint32_t rows,
                   uint32_t outs, uint32_t ins)
{
    for (uint32_t r = 0; r < rows; r++) memcpy(out + (size_t)r * outs, bias, outs * sizeof(float));
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)outs, (int)ins, 1, in, (int)ins,
                weights, (int)ins, 1, out, (int)outs);
}

/* d_in (rows, ins) = d_out * weights; d_weights and d_bias receive their gradients. */
static void linear_backward(float *d_in, float *d_weights, float *d_bias, const float *d_out, const float *in,
                            const float *weights, uint32_t rows, uint32_t outs, uint32_t ins)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)ins, (int)outs, 1, d_out,
                (int)outs, weights, (int)ins, 0, d_in, (int)ins);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)outs, (int)ins, (int)rows, 1, d_out, (int)outs,
                in, (int)ins, 0, d_weights, (int)ins);
    memset(d_bias, 0, outs * sizeof(float));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t o = 0; o < outs; o++) d_bias[o] += d_out[(size_t)r * outs + o];
}

static void norm(float *out, float *means, float *scales, const float *in, const float *gain,
                 const float *bias, uint32_t rows, uint32_t width)
{
    for (uint32_t r = 0; r < rows; r++, in += width, out += width) {
        float mean = 0, variance = 0;
        for (uint32_t k = 0; k < width; k++) mean += in[k];
        mean /= (float)width;
        for (uint32_t k = 0; k < width; k++) variance += (in[k] - mean) * (in[k] - mean);
        const float scale = 1 / sqrtf(variance / (float)width + 1e-5f);
        for (uint32_t k = 0; k < width; k++) out[k] = (in[k] - mean) * scale * gain[k] + bias[k];
        means[r] = mean;
        scales[r] = scale;
    }
}

/* Adds to d_in. d_gain and d_bias receive their gradients. */
static void norm_backward(float *d_in, float *d_gain, float *d_bias, const float *d_out, const float *in,
                          const float *means, const float *scales, const float *gain, uint32_t rows,
                          uint32_t width)
{
    memset(d_gain, 0, width * sizeof(float));
    memset(d_bias, 0, width * sizeof(float));
    for (uint32_t r = 0; r < rows; r++, in += width, d_in += width, d_out += width) {
        float sum = 0, projected = 0;
        for (uint32_t k = 0; k < width; k++) {
            const float unit = (in[k] - means[r]) * scales[r], d_unit = d_out[k] * gain[k];
            d_gain[k] += d_out[k] * unit;
            d_bias[k] += d_out[k];
            sum += d_unit;
            projected += d_unit * unit;
        }
        sum /= (float)width;
        projected /= (float)width;
        for (uint32_t k = 0; k < width; k++) {
            const float unit = (in[k] - means[r]) * scales[r];
            d_in[k] += (d_out[k] * gain[k] - sum - unit * projected) * scales[r];
        }
    }
}

/* One row of attention: softmax over the places up to `last`, zero behind it. */
static void causal_softmax(float *row, uint32_t last, uint32_t length, float scale)
{
    float most = row[0], sum = 0;
    for (uint32_t k = 1; k <= last; k++) most = row[k] > most ? row[k] : most;
    for (uint32_t k = 0; k <= last; k++) sum += row[k] = expf((row[k] - most) * scale);
    for (uint32_t k = 0; k <= last; k++) row[k] /= sum;
    memset(row + last + 1, 0, (length - last - 1) * sizeof(float));
}

/* Queries, keys and values of one head of one sample, inside the rows of qkv. */
struct head {
    size_t query, key, value, out, share; /* offsets */
    int size, step;                       /* elements of a head; of a row of qkv */
};

static struct head head_of(const struct gpt *gpt, uint32_t sample, uint32_t index)
{
    const uint32_t width = gpt->shape.width, length = gpt->shape.length, size = width / gpt->shape.heads;
    const size_t row = (size_t)sample * length, query = row * 3 * width + (size_t)index * size;
    return (struct head){.query = query,
                         .key = query + width,
                         .value = query + 2 * (size_t)width,
                         .out = row * width + (size_t)index * size,
                         .share = ((size_t)sample * gpt->shape.heads + index) * length * length,
                         .size = (int)size,
                         .step = (int)(3 * width)};
}

static void attention(struct gpt *gpt, struct gpt_block *block)
{
    const int length = (int)gpt->shape.length, width = (int)gpt->shape.width;
    for (uint32_t i = 0; i < gpt->samples * gpt->shape.heads; i++) {
        const struct head head = head_of(gpt, i / gpt->shape.heads, i % gpt->shape.heads);
        float *share = block->share + head.share;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, length, length, head.size, 1,
                    block->qkv + head.query, head.step, block->qkv + head.key, head.step, 0, share, length);
        for (int r = 0; r < length; r++)
            causal_softmax(share + (size_t)r * length, (uint32_t)r, gpt->shape.length,
                           1 / sqrtf((float)head.size));
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, length, head.size, length, 1, share, length,
                    block->qkv + head.value, head.step, 0, block->mixed + head.out, width);
    }
}

/* From the gradient of `mixed` in d_width to that of qkv in d_qkv. */
static void attention_backward(struct gpt *gpt, const struct gpt_block *block)
{
    const int length = (int)gpt->shape.length, width = (int)gpt->shape.width;
    for (uint32_t i = 0; i < gpt->samples * gpt->shape.heads; i++) {
        const struct head head = head_of(gpt, i / gpt->shape.heads, i % gpt->shape.heads);
        const float *share = block->share + head.share, *d_mixed = gpt->d_width + head.out;
        const float scale = 1 / sqrtf((float)head.size);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, length, head.size, length, 1, share, length,
                    d_mixed, width, 0, gpt->d_qkv + head.value, head.step);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, length, length, head.size, 1, d_mixed, width,
                    block->qkv + head.value, head.step, 0, gpt->d_share, length);
        for (int r = 0; r < length; r++) {
            float *d_row = gpt->d_share + (size_t)r * length, sum = 0;
            const float *row = share + (size_t)r * length;
            for (int k = 0; k < length; k++) sum += row[k] * d_row[k];
            for (int k = 0; k < length; k++) d_row[k] = row[k] * (d_row[k] - sum) * scale;
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, length, head.size, length, 1, gpt->d_share,
                    length, block->qkv + head.key, head.step, 0, gpt->d_qkv + head.query, head.step);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, length, head.size, length, 1, gpt->d_share,
                    length, block->qkv + head.query, head.step, 0, gpt->d_qkv + head.key, head.step);
    }
}

/* ---- layers ---- */

void gpt_begin(struct gpt *gpt, const uint8_t *text, uint32_t samples)
{
    gpt->text = text;
    gpt->samples = samples;
}

static uint32_t row_count(const struct gpt *gpt)
{
    return gpt->samples * gpt->shape.length;
}

/* The byte at a row, or the byte behind it, which the row predicts. */
static uint8_t byte_at(const struct gpt *gpt, uint32_t row, uint32_t behind)
{
    const uint32_t length = gpt->shape.length;
    return gpt->text[(size_t)(row / length) * (length + 1) + row % length + behind];
}

static float *output_of(struct gpt *gpt, uint32_t block)
{
    return block + 1 < gpt->shape.blocks ? gpt->blocks[block + 1].in : gpt->out;
}

static void embed(struct gpt *gpt)
{
    const uint32_t width = gpt->shape.width;
    const float *bytes = working(gpt, &gpt->parts[BYTES], 0), *places = working(gpt, &gpt->parts[PLACES], 1);
    float *out = gpt->blocks[0].in;
    for (uint32_t r = 0; r < row_count(gpt); r++, out += width) {
        const float *byte = bytes + (size_t)byte_at(gpt, r, 0) * width;
        const float *place = places + (size_t)(r % gpt->shape.length) * width;
        for (uint32_t k = 0; k < width; k++) out[k] = byte[k] + place[k];
    }
}

static void embed_backward(struct gpt *gpt)
{
    const uint32_t width = gpt->shape.width;
    float *bytes = gpt->parts[BYTES].grad, *places = gpt->parts[PLACES].grad;
    memcpy(bytes, gpt->d_tied, GPT_BYTES * (size_t)width * sizeof(float));
    memset(places, 0, gpt->parts[PLACES].count * sizeof(float));
    for (uint32_t r = 0; r < row_count(gpt); r++) {
        const float *d_out = gpt->d_out + (size_t)r * width;
        float *byte = bytes + (size_t)byte_at(gpt, r, 0) * width;
        float *place = places + (size_t)(r % gpt->shape.length) * width;
        for (uint32_t k = 0; k < width; k++) byte[k] += d_out[k], place[k] += d_out[k];
    }
}

/* u * sigmoid(1.702 u), close to gelu; `gate` keeps the sigmoid for the backward pass */
static void activate(float *out, float *gate, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        gate[i] = 1 / (1 + expf(-1.702f * in[i]));
        out[i] = in[i] * gate[i];
    }
}

static void activate_backward(float *d, const float *gate, const float *in, size_t count)
{
    for (size_t i = 0; i < count; i++) d[i] *= gate[i] * (1 + 1.702f * in[i] * (1 - gate[i]));
}

static void add(float *out, const float *other, size_t count)
{
    for (size_t i = 0; i < count; i++) out[i] += other[i];
}

static void block_forward(struct gpt *gpt, uint32_t index)
{
    const uint32_t rows = row_count(gpt), width = gpt->shape.width;
    struct gpt_block *block = &gpt->blocks[index];
    float *out = output_of(gpt, index);
    const float *vector = working(gpt, block_part(gpt, index, VECTOR), 1);
    norm(block->norm1, block->mean1, block->scale1, block->in, vector + NORM1 * width,
         vector + NORM1_BIAS * width, rows, width);
    linear(block->qkv, block->norm1, working(gpt, block_part(gpt, index, QKV), 0), vector + QKV_BIAS * width,
           rows, 3 * width, width);
    attention(gpt, block);
    linear(block->sum, block->mixed, working(gpt, block_part(gpt, index, PROJECT), 0),
           vector + PROJECT_BIAS * width, rows, width, width);
    add(block->sum, block->in, (size_t)rows * width);
    norm(block->norm2, block->mean2, block->scale2, block->sum, vector + NORM2 * width,
         vector + NORM2_BIAS * width, rows, width);
    linear(block->up, block->norm2, working(gpt, block_part(gpt, index, UP), 0), vector + UP_BIAS * width,
           rows, 4 * width, width);
    activate(block->act, block->gate, block->up, (size_t)rows * width * 4);
    linear(out, block->act, working(gpt, block_part(gpt, index, DOWN), 0), vector + DOWN_BIAS * width, rows,
           width, 4 * width);
    add(out, block->sum, (size_t)rows * width);
}

/* d_out holds the gradient of the block's output, then that of its input. */
static void block_backward(struct gpt *gpt, uint32_t index)
{
    const uint32_t rows = row_count(gpt), width = gpt->shape.width;
    struct gpt_block *block = &gpt->blocks[index];
    const float *vector = working(gpt, block_part(gpt, index, VECTOR), 1);
    float *d_vector = block_part(gpt, index, VECTOR)->grad;
    struct gpt_part *down = block_part(gpt, index, DOWN), *up = block_part(gpt, index, UP);
    struct gpt_part *project = block_part(gpt, index, PROJECT), *qkv = block_part(gpt, index, QKV);
    linear_backward(gpt->d_four, down->grad, d_vector + DOWN_BIAS * width, gpt->d_out, block->act,
                    working(gpt, down, 0), rows, width, 4 * width);
    activate_backward(gpt->d_four, block->gate, block->up, (size_t)rows * width * 4);
    linear_backward(gpt->d_width, up->grad, d_vector + UP_BIAS * width, gpt->d_four, block->norm2,
                    working(gpt, up, 0), rows, 4 * width, width);
    norm_backward(gpt->d_out, d_vector + NORM2 * width, d_vector + NORM2_BIAS * width, gpt->d_width,
                  block->sum, block->mean2, block->scale2, vector + NORM2 * width, rows, width);
    linear_backward(gpt->d_width, project->grad, d_vector + PROJECT_BIAS * width, gpt->d_out, block->mixed,
                    working(gpt, project, 0), rows, width, width);
    attention_backward(gpt, block);
    linear_backward(gpt->d_width, qkv->grad, d_vector + QKV_BIAS * width, gpt->d_qkv, block->norm1,
                    working(gpt, qkv, 0), rows, 3 * width, width);
    norm_backward(gpt->d_out, d_vector + NORM1 * width, d_vector + NORM1_BIAS * width, gpt->d_width,
                  block->in, block->mean1, block->scale1, vector + NORM1 * width, rows, width);
}

/* Turns a row of logits into the gradient of the mean loss. Returns the row's loss. */
static double cross_entropy(float *logits, uint8_t wanted, uint32_t rows)
{
    float most = logits[0];
    double sum = 0;
    for (uint32_t c = 1; c < GPT_BYTES; c++) most = logits[c] > most ? logits[c] : most;
    const double right = (double)logits[wanted] - (double)most;
    for (uint32_t c = 0; c < GPT_BYTES; c++) sum += (double)(logits[c] = expf(logits[c] - most));
    const float scale = (float)(1 / (sum * rows));
    for (uint32_t c = 0; c < GPT_BYTES; c++) logits[c] *= scale;
    logits[wanted] -= 1 / (float)rows;
    return log(sum) - right;
}

static double head_forward(struct gpt *gpt)
{
    const uint32_t rows = row_count(gpt), width = gpt->shape.width;
    const float *vector = working(gpt, &gpt->parts[gpt->part_count - 1], 1);
    norm(gpt->out_norm, gpt->out_mean, gpt->out_scale, gpt->out, vector, vector + width, rows, width);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, GPT_BYTES, (int)width, 1, gpt->out_norm,
                (int)width, working(gpt, &gpt->parts[BYTES], 0), (int)width, 0, gpt->logits, GPT_BYTES);
    double loss = 0;
    for (uint32_t r = 0; r < rows; r++)
        loss += cross_entropy(gpt->logits + (size_t)r * GPT_BYTES, byte_at(gpt, r, 1), rows);
    return loss / rows;
}

static void head_backward(struct gpt *gpt)
{
    const uint32_t rows = row_count(gpt), width = gpt->shape.width;
    struct gpt_part *last = &gpt->parts[gpt->part_count - 1];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)width, GPT_BYTES, 1, gpt->logits,
                GPT_BYTES, working(gpt, &gpt->parts[BYTES], 0), (int)width, 0, gpt->d_width, (int)width);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, GPT_BYTES, (int)width, (int)rows, 1, gpt->logits,
                GPT_BYTES, gpt->out_norm, (int)width, 0, gpt->d_tied, (int)width);
    memset(gpt->d_out, 0, (size_t)rows * width * sizeof(float));
    norm_backward(gpt->d_out, last->grad, last->grad + width, gpt->d_width, gpt->out, gpt->out_mean,
                  gpt->out_scale, working(gpt, last, 1), rows, width);
}

double gpt_forward(struct gpt *gpt, uint32_t layer)
{
    if (layer == 0) embed(gpt);
    else if (layer <= gpt->shape.blocks) block_forward(gpt, layer - 1);
    else return head_forward(gpt);
    return 0;
}

void gpt_backward(struct gpt *gpt, uint32_t layer)
{
    if (layer == 0) embed_backward(gpt);
    else if (layer <= gpt->shape.blocks) block_backward(gpt, layer - 1);
    else head_backward(gpt);
}
