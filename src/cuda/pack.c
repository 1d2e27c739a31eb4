/* pack.c: kinds and sizes of the tile layout, and the walk over a matrix's tiles, units and rows. See pack.h.
 *
 * Readers of formats are in pack_read.c, writers of code planes in pack_code.c; scale, super and factor planes are
 * written here.
 */
#include "cuda/pack.h"

#include <stdio.h>
#include <string.h>

#include "base/float_bits.h"
#include "cuda/pack_parts.h"
#include "quant/decode.h"

#define X(id, code, zero, table, sub, item, min, exponent) \
    [MOTE_FORMAT_##                                        \
        id] = {MOTE_CODE_##code, zero, MOTE_TABLE_##table, sub, MOTE_ITEM_##item, min, exponent, 0},
static const struct mote_tile_kind kinds[MOTE_FORMAT_COUNT] = {
    [MOTE_FORMAT_F32] = {MOTE_CODE_NONE, .item = MOTE_ITEM_F32},
    [MOTE_FORMAT_F16] = {MOTE_CODE_NONE, .item = MOTE_ITEM_F16},
    [MOTE_FORMAT_BF16] = {MOTE_CODE_NONE, .item = MOTE_ITEM_BF16},
    [MOTE_FORMAT_MLX_MXFP8] = {MOTE_CODE_NONE, .item = MOTE_ITEM_BF16},
    MOTE_TILE_KINDS(X)};
/* CODE_NONE: as in kinds. */
static const struct mote_tile_kind compact_kinds[MOTE_FORMAT_COUNT] = {MOTE_TILE_COMPACT_KINDS(X)};
#undef X

mote_status mote_tile_kind_of(const struct mote_matrix *w, int compact, struct mote_tile_kind *out)
{
    const struct mote_format_traits *traits = mote_format_traits(w->format);
    FAIL_IF(traits->family == MOTE_FAMILY_OTHER, MOTE_UNSUPPORTED,
            "no device kernels for weights of format %s", traits->name);
    int is_denser = compact && compact_kinds[w->format].code != MOTE_CODE_NONE;
    *out = is_denser ? compact_kinds[w->format] : kinds[w->format];
    if (out->code == MOTE_CODE_NONE) {
        FAIL_IF(w->factor != 1, MOTE_UNSUPPORTED, "no device kernels for %s weights with a tensor scale",
                traits->name);
        return MOTE_OK;
    }
    if (out->sub == 0) out->sub = traits->family == MOTE_FAMILY_PLANAR ? w->group : traits->block_elems;
    FAIL_IF(out->sub != 16 && out->sub != 32 && out->sub != 64 && out->sub != 128 && out->sub != 256,
            MOTE_UNSUPPORTED,
            "no device kernels for %s weights with groups of %d columns (16, 32, 64, 128 and 256 have them)",
            traits->name, out->sub);
    if (traits->family == MOTE_FAMILY_PLANAR && out->has_min)
        out->item = w->scale_format == MOTE_FORMAT_F32   ? MOTE_ITEM_F32
                    : w->scale_format == MOTE_FORMAT_F16 ? MOTE_ITEM_F16
                                                         : MOTE_ITEM_BF16;
    /* NVFP4's always, so that a model's experts are of one kind whatever their scales are. */
    out->has_factor = w->factor != 1 || out->item == MOTE_ITEM_UE4M3;
    return MOTE_OK;
}

int mote_tile_kind_same(const struct mote_tile_kind *a, const struct mote_tile_kind *b)
{
    return a->code == b->code && a->zero == b->zero && a->table == b->table && a->sub == b->sub &&
           a->item == b->item && a->has_min == b->has_min && a->exponent == b->exponent &&
           a->has_factor == b->has_factor;
}

void mote_tile_kind_text(const struct mote_tile_kind *k, char out[MOTE_TILE_TEXT])
{
    snprintf(out, MOTE_TILE_TEXT, "%d,%d,%d,%d,%d,%d,%d,%d", (int)k->code, k->zero, (int)k->table, k->sub,
             (int)k->item, k->has_min, k->exponent, k->has_factor);
}

/* ---- where the planes of a record lie ---- */

struct plan {
    int64_t n_unit, at_code[3], at_scale, at_super, at_factor;
    size_t bytes;
    size_t chunk_bytes; /* items of a row: of 32 columns (sub 16, 32), of the group (64 and up) */
    int chunk_cols;
    size_t super_bytes; /* of a row; 0: none */
};

static size_t item_bytes(enum mote_tile_item item)
{
    static const uint8_t bytes[] = {[MOTE_ITEM_F16] = 2,  [MOTE_ITEM_BF16] = 2,    [MOTE_ITEM_F32] = 4,
                                    [MOTE_ITEM_E8M0] = 1, [MOTE_ITEM_UE4M3] = 1,   [MOTE_ITEM_S8] = 1,
                                    [MOTE_ITEM_U8] = 1,   [MOTE_ITEM_NIBBLES] = 1, [MOTE_ITEM_INSIDE] = 0};
    return bytes[item];
}

static int64_t pad(int64_t bytes, int64_t to)
{
    return (bytes + to - 1) / to * to;
}

static size_t plain_row_bytes(enum mote_tile_item item, int64_t n_col)
{
    return (size_t)pad(n_col * (int64_t)item_bytes(item), 16);
}

static struct plan make_plan(const struct mote_tile_kind *kind, int64_t n_col)
{
    const struct mote_pack_code *code = &mote_pack_code_of[kind->code];
    struct plan p = {.n_unit = (n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS};
    int64_t at = 0;
    for (int i = 0; i < 3; i++) {
        p.at_code[i] = at;
        at = pad(at + p.n_unit * 32 * code->plane_bytes[i], 16);
    }
    int n_item = (kind->sub == 16 ? 2 : 1) * (kind->has_min && kind->item != MOTE_ITEM_NIBBLES ? 2 : 1);
    p.chunk_cols = kind->sub < 32 ? 32 : kind->sub;
    p.chunk_bytes = (size_t)n_item * item_bytes(kind->item);
    p.at_scale = at;
    int64_t n_chunk = (p.n_unit * MOTE_UNIT_COLS + p.chunk_cols - 1) / p.chunk_cols;
    at = pad(at + n_chunk * MOTE_TILE_ROWS * (int64_t)p.chunk_bytes, 16);
    p.at_super = at;
    p.super_bytes = kind->item < MOTE_ITEM_S8 ? 0 : kind->has_min ? 4 : 2;
    at = pad(at + (n_col + 255) / 256 * MOTE_TILE_ROWS * (int64_t)p.super_bytes, 16);
    p.at_factor = at;
    p.bytes = (size_t)pad(at + (kind->has_factor ? 16 : 0), 128);
    return p;
}

size_t mote_tile_bytes(const struct mote_tile_kind *kind, int64_t n_col)
{
    if (kind->code == MOTE_CODE_NONE) return MOTE_TILE_ROWS * plain_row_bytes(kind->item, n_col);
    return make_plan(kind, n_col).bytes;
}

size_t mote_tile_matrix_bytes(const struct mote_tile_kind *kind, int64_t n_row, int64_t n_col)
{
    return (size_t)((n_row + MOTE_TILE_ROWS - 1) / MOTE_TILE_ROWS) * mote_tile_bytes(kind, n_col);
}

/* ---- packing ---- */

/* What is not there: weight 0. */
static void absent(const struct mote_tile_kind *kind, struct mote_pack_row *row)
{
    memset(row->code, kind->zero, sizeof row->code);
    memset(row->item, kind->item == MOTE_ITEM_E8M0 ? 127 : 0, sizeof row->item); /* e8m0 has no zero: 1 */
    memset(row->super, 0, sizeof row->super);
}

/* [chunk][8 g][2 rows][chunk_bytes] */
static void write_scales(const struct plan *p, int64_t unit, const struct mote_pack_row row[16],
                         uint8_t *record)
{
    if (unit * MOTE_UNIT_COLS % p->chunk_cols) return; /* the unit before had it */
    int n_chunk = p->chunk_cols < MOTE_UNIT_COLS ? MOTE_UNIT_COLS / p->chunk_cols : 1;
    uint8_t *to = record + p->at_scale +
                  unit * MOTE_UNIT_COLS / p->chunk_cols * MOTE_TILE_ROWS * (int64_t)p->chunk_bytes;
    for (int c = 0; c < n_chunk; c++)
        for (int i = 0; i < MOTE_TILE_ROWS; i++, to += p->chunk_bytes)
            memcpy(to, row[(i >> 1) + 8 * (i & 1)].item + (size_t)c * p->chunk_bytes, p->chunk_bytes);
}

/* [super-block][8 g][2 rows][d, dmin] */
static void write_supers(const struct plan *p, int64_t unit, const struct mote_pack_row row[16],
                         uint8_t *record)
{
    if (unit & 1) return;
    uint8_t *to = record + p->at_super + unit / 2 * MOTE_TILE_ROWS * (int64_t)p->super_bytes;
    for (int i = 0; i < MOTE_TILE_ROWS; i++, to += p->super_bytes)
        memcpy(to, row[(i >> 1) + 8 * (i & 1)].super, p->super_bytes);
}

static void pack_tile(const struct mote_tile_kind *kind, const struct plan *p, const struct mote_matrix *w,
                      int64_t tile, uint8_t *record)
{
    const struct mote_pack_code *code = &mote_pack_code_of[kind->code];
    mote_pack_reader *read = mote_pack_reader_of[w->format];
    struct mote_pack_row row[MOTE_TILE_ROWS];
    int64_t left = w->n_row - tile * MOTE_TILE_ROWS;
    int n_row = left < MOTE_TILE_ROWS ? (int)left : MOTE_TILE_ROWS;
    memset(record + p->at_scale, 0, p->bytes - (size_t)p->at_scale); /* what lies between planes */
    for (int r = 0; r < MOTE_TILE_ROWS; r++) absent(kind, &row[r]);
    for (int64_t unit = 0; unit < p->n_unit; unit++) {
        int64_t there = w->n_col - unit * MOTE_UNIT_COLS;
        int n = there < MOTE_UNIT_COLS ? (int)there : MOTE_UNIT_COLS;
        for (int r = 0; r < n_row; r++) {
            if (n < MOTE_UNIT_COLS) absent(kind, &row[r]);
            read(w, tile * MOTE_TILE_ROWS + r, unit, n, &row[r]);
        }
        uint8_t *plane[3];
        for (int i = 0; i < 3; i++) plane[i] = record + p->at_code[i] + unit * 32 * code->plane_bytes[i];
        code->write(row, plane);
        write_scales(p, unit, row, record);
        write_supers(p, unit, row, record);
    }
    if (kind->has_factor) memcpy(record + p->at_factor, &w->factor, sizeof w->factor);
}

static void pack_plain(const struct mote_tile_kind *kind, const struct mote_matrix *w, int64_t tile,
                       uint8_t *out)
{
    size_t row_bytes = plain_row_bytes(kind->item, w->n_col),
           used = (size_t)w->n_col * item_bytes(kind->item);
    for (int64_t r = tile * MOTE_TILE_ROWS; r < (tile + 1) * MOTE_TILE_ROWS; r++, out += row_bytes) {
        size_t n = r < w->n_row ? used : 0;
        memset(out + n, 0, row_bytes - n);
        if (!n) continue;
        if (w->format != MOTE_FORMAT_MLX_MXFP8) {
            memcpy(out, w->data + (size_t)r * w->row_bytes, n);
            continue;
        }
        for (int64_t c = 0; c < w->n_col; c += 32) {
            float value[32];
            uint16_t half[32];
            mote_decode(w, r, c, 32, value);
            for (int i = 0; i < 32; i++) half[i] = mote_f32_bf16(value[i]);
            memcpy(out + 2 * c, half, sizeof half);
        }
    }
}

void mote_tile_pack(const struct mote_tile_kind *kind, const struct mote_matrix *w, int64_t tile,
                    int64_t n_tile, uint8_t *out)
{
    size_t bytes = mote_tile_bytes(kind, w->n_col);
    if (kind->code == MOTE_CODE_NONE) {
        for (int64_t i = 0; i < n_tile; i++) pack_plain(kind, w, tile + i, out + (size_t)i * bytes);
        return;
    }
    struct plan plan = make_plan(kind, w->n_col);
    for (int64_t i = 0; i < n_tile; i++) pack_tile(kind, &plan, w, tile + i, out + (size_t)i * bytes);
}

/* ---- MXFP4 ---- */

/* Of a packed tile of E2M1: are a row's 32 columns of a block all zeros? */
static int is_zero_block(const uint8_t *record, int row, int64_t block)
{
    enum {
        UNIT_CODES = 1024,
        ROW_CODES = 512,
        LANE = 16
    }; /* of a unit: row g's words of all lanes, row g + 8's */
    const uint8_t *code =
        record + block / 4 * UNIT_CODES + row / 8 * ROW_CODES + row % 8 * 4 * LANE + block % 4 * 4;
    uint32_t any = 0;
    for (int t = 0; t < 4; t++) any |= mote_load_u32(code + t * LANE);
    return !(any & 0x77777777u);
}

int mote_tile_mx_base(uint8_t *record, int64_t n_col, uint8_t base[MOTE_TILE_ROWS])
{
    int64_t n_block = (n_col + MOTE_UNIT_COLS - 1) / MOTE_UNIT_COLS * 4;
    int is_wide = 0;
    for (int row = 0; row < MOTE_TILE_ROWS; row++) {
        uint8_t *item = record + n_block * 256 + row % 8 * 2 + row / 8; /* of block 0; 16 bytes to the next */
        int most = 0, least = 255, n_zero = 0;
        for (int64_t block = 0; block < n_block; block++) {
            if (is_zero_block(record, row, block)) {
                n_zero++;
                continue;
            }
            most = item[block * 16] > most ? item[block * 16] : most;
            least = item[block * 16] < least ? item[block * 16] : least;
        }
        base[row] = (uint8_t)(most > MOTE_MX_WINDOW ? most - MOTE_MX_WINDOW : 0);
        if (least < base[row] || most == 255) is_wide |= MOTE_MX_WIDE;
        if (most == 255) is_wide |= MOTE_MX_NO_NUMBER;
        for (int64_t block = 0; n_zero && block < n_block; block++)
            if (is_zero_block(record, row, block)) item[block * 16] = base[row];
    }
    return is_wide;
}
