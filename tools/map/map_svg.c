/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The picture of berth map. One file, without scripts and fonts. The file is cut into rows. Under
 * the bytes of a row lie thin lanes: storages with several tensors, extents, the page cache.
 *
 * Places are in units of the viewBox. Texts are of one width a letter, so that their room is known:
 * what is narrow in the picture gets the larger letters (LETTER_UNITS), and room is kept for those.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/report.h"
#include "tools/map/map.h"

enum {
    WIDTH = 760,
    MARGIN = 20,
    BAR_WIDTH = WIDTH - 2 * MARGIN,
    MAX_ROWS = 12,
    TEXT_HEIGHT = 28,
    BAR_HEIGHT = 30,
    LANE_HEIGHT = 6,
    LANE_GAP = 3,
    ROW_GAP = 12,
    N_PALETTE = 8,
    NAME_NBYTES = 72
};
/* Parts that would be narrower are drawn together with their neighbours. */
#define MIN_WIDTH 2.0

/* Where the picture is being drawn. */
typedef struct svg {
    const map *m;
    FILE *out;
    size_t n_rows;
    uint64_t row_nbytes;
    uint64_t row_begin; /* of the row at hand */
    double y;
} svg;

/* Parts of one lane that are drawn as one box. */
typedef struct box {
    double begin, end; /* units */
    const map_part *first, *last;
} box;

/* ---- text ---- */

/* At most NAME_NBYTES of a name, as XML; what XML does not allow becomes a question mark. */
static void print_xml(FILE *out, const char *text)
{
    char shown[NAME_NBYTES + 1];
    size_t nbytes = berth_show_text(text, strlen(text), BERTH_TEXT_PLAIN, shown, sizeof shown);

    for (const char *at = shown; *at; at++)
        if (strchr("<>&\"", *at))
            fprintf(out, "&#%d;", *at);
        else
            fputc(*at, out);
    fputs(nbytes > NAME_NBYTES ? "..." : "", out);
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash && slash[1] ? slash + 1 : path;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- classes: a colour each ---- */

/* Dtypes that files often have get colours of their own. */
static unsigned dtype_palette(berth_dtype dtype)
{
    switch (dtype) {
    case BERTH_FLOAT32:
        return 0;
    case BERTH_BFLOAT16:
        return 1;
    case BERTH_FLOAT16:
        return 2;
    case BERTH_FLOAT64:
        return 3;
    case BERTH_INT64:
    case BERTH_INT32:
    case BERTH_INT16:
        return 4;
    case BERTH_INT8:
    case BERTH_UINT8:
    case BERTH_BOOL:
        return 5;
    case BERTH_FLOAT8_E4M3FN:
    case BERTH_FLOAT8_E5M2:
    case BERTH_FLOAT4_E2M1FN_X2:
    case BERTH_FLOAT6_E2M3FN_X4:
    case BERTH_FLOAT6_E3M2FN_X4:
        return 6;
    default:
        return N_PALETTE - 1;
    }
}

static void print_class(const svg *s, const map_part *part)
{
    static const char *const classes[] = {
        [PART_SHARED] = "shared", [PART_CACHED] = "cached", [PART_PARTLY_CACHED] = "partly"};

    if (part->kind == PART_STORAGE)
        fprintf(s->out, "t%u", dtype_palette(map_part_dtype(s->m, part)));
    else if (part->kind == PART_EXTENT)
        fputs(part->index % 2 ? "odd" : "even", s->out);
    else
        fputs(part->kind < PART_N_KINDS ? part_kind_names[part->kind] : classes[part->kind],
              s->out);
}

static void print_style(FILE *out)
{
    fputs("<style>\n"
          "svg{max-width:1100px;height:auto;background:var(--page);--page:#fff;--ink:#1b1f24;"
          "--faint:#57606a;--line:#d0d7de}\n"
          "text{font:14px ui-monospace,Menlo,Consolas,\"DejaVu Sans Mono\",monospace;"
          "fill:var(--ink)}\n"
          ".f{fill:var(--faint)}\n.b{font-weight:bold}\n.frame{fill:none;stroke:var(--line)}\n"
          "rect.x:hover{stroke:var(--ink);stroke-width:1.5}\n"
          "@media(max-width:620px){text{font-size:19px}}\n"
          ".t0{fill:#2f6fd0}.t1{fill:#1a936f}.t2{fill:#7d5bd0}.t3{fill:#0e8aa8}.t4{fill:#d9822b}\n"
          ".t5{fill:#c2568c}.t6{fill:#8a9a1f}.t7{fill:#8d6e54}\n"
          ".header{fill:#6e7781}.padding{fill:#d8dee4}.pickle{fill:#d4a72c}.unused{fill:#cf222e}\n"
          ".record{fill:#a475f9}.descriptor{fill:#afb8c1}.directory{fill:#424a53}"
          ".gap{fill:#ff8182}\n"
          ".shared{fill:#bc4c00}.even{fill:#8c959f}.odd{fill:#57606a}.cached{fill:#2da44e}"
          ".partly{fill:#9be0ac}\n"
          "@media(prefers-color-scheme:dark){svg{--page:#0d1117;--ink:#e6edf3;--faint:#9198a1;"
          "--line:#3d444d}\n"
          ".t0{fill:#6ca4f8}.t1{fill:#4cc38a}.t2{fill:#b197fc}.t3{fill:#4fc3dc}.t4{fill:#f0a35e}\n"
          ".t5{fill:#ee8fbb}.t6{fill:#c5d24f}.t7{fill:#c3a489}\n"
          ".header{fill:#8b949e}.padding{fill:#2b3139}.pickle{fill:#f2cc60}.unused{fill:#f85149}\n"
          ".descriptor{fill:#545d68}.directory{fill:#c9d1d9}.shared{fill:#ffa657}"
          ".even{fill:#6e7681}.odd{fill:#9ea7b3}.partly{fill:#196c2e}}\n"
          "</style>\n",
          out);
}

/* ---- tooltips ---- */

static void print_range(FILE *out, uint64_t offset, uint64_t nbytes)
{
    char text[32];

    fprintf(out, "%" PRIu64 " to %" PRIu64, offset, offset + nbytes);
    if (nbytes >= 1024)
        fprintf(out, " (%s)", human_nbytes(nbytes, text));
}

static void print_storage_title(const svg *s, const map_storage *storage)
{
    const char *key = berth_storage_get_info(storage->storage)->key;

    fputs("storage ", s->out);
    print_xml(s->out, key);
    fprintf(s->out, "%s%s", *key ? " " : "", berth_dtype_name(storage->dtype));
    if (storage->first_name) {
        fputs(": ", s->out);
        print_xml(s->out, storage->first_name);
    }
    if (storage->n_tensors > 1)
        fprintf(s->out, " and %zu more tensor%s", storage->n_tensors - 1,
                plural(storage->n_tensors - 1));
    fputs(", ", s->out);
}

static void print_part_title(const svg *s, const map_part *part)
{
    static const char *const texts[] = {[PART_EXTENT] = "extent ",
                                        [PART_CACHED] = "in the page cache: ",
                                        [PART_PARTLY_CACHED] = "partly in the page cache: "};

    if (part->kind == PART_UNUSED)
        fputs("no tensor uses it: ", s->out);
    if (part->kind == PART_EXTENT)
        fprintf(s->out, "extent %zu, on the disk at %" PRIu64 ": ", part->index, part->address);
    else if (part->kind > PART_SHARED)
        fputs(texts[part->kind], s->out);
    else if (part->index != PART_NO_STORAGE)
        print_storage_title(s, &s->m->storages[part->index]);
    else {
        fputs(part_kind_names[part->kind], s->out);
        if (part->name) {
            fputs(" of ", s->out);
            print_xml(s->out, part->name);
        }
        fputs(", ", s->out);
    }
    print_range(s->out, part->offset, part->nbytes);
}

/* The part that most bytes of a box belong to, by class: its colour. */
static const map_part *box_main_part(const svg *s, const box *b)
{
    uint64_t nbytes[PART_PARTLY_CACHED + 1 + N_PALETTE] = {0}, most = 0;
    const map_part *found = b->first;

    for (const map_part *part = b->first; part <= b->last; part++) {
        size_t class = part->kind == PART_STORAGE
                           ? PART_PARTLY_CACHED + 1 + dtype_palette(map_part_dtype(s->m, part))
                           : part->kind;
        nbytes[class] += part->nbytes;
        if (nbytes[class] > most) {
            most = nbytes[class];
            found = part;
        }
    }
    return found;
}

/* "1234 parts: 300 storages, mostly float32, 0 to 99999" */
static void print_merged_title(const svg *s, const box *b, const map_part *main)
{
    uint64_t end = b->last->offset + b->last->nbytes, n_storages = 0;

    for (const map_part *part = b->first; part <= b->last; part++)
        n_storages += part->kind == PART_STORAGE;
    fprintf(s->out, "%td parts", b->last - b->first + 1);
    if (n_storages > 0)
        fprintf(s->out, ", %" PRIu64 " of storages", n_storages);
    fprintf(s->out, ", mostly %s: ",
            main->kind == PART_STORAGE  ? berth_dtype_name(map_part_dtype(s->m, main))
            : main->kind < PART_N_KINDS ? part_kind_texts[main->kind]
            : main->kind == PART_SHARED ? "shared"
            : main->kind == PART_EXTENT ? "extents"
                                        : "in the page cache");
    print_range(s->out, b->first->offset, end - b->first->offset);
}

/* ---- boxes ---- */

/* Rounded as it is printed: neighbours meet, and never overlap. */
static double svg_x(const svg *s, uint64_t offset)
{
    uint64_t end = s->row_begin + s->row_nbytes;

    offset = offset < s->row_begin ? s->row_begin : offset > end ? end : offset;
    return (double)(uint64_t)((double)(offset - s->row_begin) / (double)s->row_nbytes * BAR_WIDTH *
                                  100 +
                              0.5) /
           100;
}

static void svg_draw_box(const svg *s, const box *b, double height)
{
    const map_part *main = box_main_part(s, b);

    if (b->end - b->begin < 0.005)
        return;
    fputs("<rect class=\"x ", s->out);
    print_class(s, main);
    fprintf(s->out, "\" x=\"%.2f\" y=\"%.0f\" width=\"%.2f\" height=\"%.0f\"><title>",
            MARGIN + b->begin, s->y, b->end - b->begin, height);
    if (b->first == b->last)
        print_part_title(s, b->first);
    else
        print_merged_title(s, b, main);
    fputs("</title></rect>\n", s->out);
}

/* A box that is too narrow to be seen gets wider, as far as there is room. */
static void svg_finish_box(const svg *s, box *b, double room_end, double height)
{
    if (!b->first)
        return;
    if (b->end < b->begin + MIN_WIDTH)
        b->end = b->begin + MIN_WIDTH < room_end ? b->begin + MIN_WIDTH : room_end;
    svg_draw_box(s, b, height);
    b->first = NULL;
}

/* One lane of the row at hand. */
static void svg_draw_lane(const svg *s, const map_parts *all, double height)
{
    uint64_t end = s->row_begin + s->row_nbytes;
    box b = {.first = NULL};

    for (size_t i = map_parts_find(all, s->row_begin); i < all->n; i++) {
        const map_part *part = &all->parts[i];
        if (part->offset >= end)
            break;
        double from = svg_x(s, part->offset), to = svg_x(s, part->offset + part->nbytes);
        bool is_wide = to - from >= MIN_WIDTH, is_far = b.first && from - b.begin >= MIN_WIDTH;
        if (b.first && (is_wide || is_far))
            svg_finish_box(s, &b, from, height);
        if (!b.first)
            b = (box){.begin = from, .end = to, .first = part, .last = part};
        else {
            b.end = to;
            b.last = part;
        }
    }
    svg_finish_box(s, &b, BAR_WIDTH, height);
}

static void svg_print_text(const svg *s, double x, const char *class, const char *text)
{
    fprintf(s->out, "<text class=\"%s\" x=\"%.0f\" y=\"%.0f\">", class, x, s->y);
    print_xml(s->out, text);
    fputs("</text>\n", s->out);
}

/* Under the bytes of a row. */
static int svg_n_lanes(const map *m)
{
    return (m->shared.n > 0) + m->has_extents + m->has_cache;
}

/* How many units a row takes. */
static double svg_row_height(const map *m)
{
    return TEXT_HEIGHT + BAR_HEIGHT + svg_n_lanes(m) * (LANE_GAP + LANE_HEIGHT) + ROW_GAP;
}

static void svg_draw_thin_lane(svg *s, const map_parts *all, bool is_told)
{
    if (!is_told)
        return;
    s->y += LANE_GAP;
    svg_draw_lane(s, all, LANE_HEIGHT);
    s->y += LANE_HEIGHT;
}

static void svg_draw_row(svg *s)
{
    const map *m = s->m;
    char text[64], nbytes[32];

    snprintf(text, sizeof text, "%" PRIu64 " (%s)", s->row_begin,
             human_nbytes(s->row_begin, nbytes));
    s->y += TEXT_HEIGHT - 8;
    svg_print_text(s, MARGIN, "f", s->row_begin ? text : "0");
    s->y += 8;
    double bar_end = svg_x(s, m->nbytes);
    fprintf(s->out, "<rect class=\"frame\" x=\"%d\" y=\"%.0f\" width=\"%.2f\" height=\"%d\"/>\n",
            MARGIN, s->y, bar_end > 1 ? bar_end : 1, BAR_HEIGHT);
    svg_draw_lane(s, &m->parts, BAR_HEIGHT);
    s->y += BAR_HEIGHT;
    svg_draw_thin_lane(s, &m->shared, m->shared.n > 0);
    svg_draw_thin_lane(s, &m->extents, m->has_extents);
    svg_draw_thin_lane(s, &m->cached, m->has_cache);
    s->y += ROW_GAP;
}

/* ---- legend ---- */

/* One line: a swatch, what it is, how many bytes, which part of the file. */
static void svg_print_legend(svg *s, const char *class, const char *what, uint64_t nbytes)
{
    char text[128], human[32];

    fprintf(s->out, "<rect class=\"%s\" x=\"%d\" y=\"%.0f\" width=\"14\" height=\"14\"/>\n", class,
            MARGIN, s->y - 13);
    snprintf(text, sizeof text, "%-19s %12s %6.2f %%", what, human_nbytes(nbytes, human),
             s->m->nbytes ? 100.0 * (double)nbytes / (double)s->m->nbytes : 0);
    fprintf(s->out, "<text xml:space=\"preserve\" x=\"%d\" y=\"%.0f\">%s</text>\n", MARGIN + 24,
            s->y, text);
    s->y += TEXT_HEIGHT;
}

static void svg_print_legend_of_dtypes(svg *s)
{
    char class[8];

    for (unsigned i = 0; i < BERTH_DTYPE_COUNT; i++) {
        if (s->m->dtypes[i] == 0)
            continue;
        snprintf(class, sizeof class, "t%u", dtype_palette((berth_dtype)i));
        svg_print_legend(s, class, berth_dtype_name((berth_dtype)i), s->m->dtypes[i]);
    }
}

static uint64_t parts_nbytes(const map_parts *all)
{
    uint64_t nbytes = 0;

    for (size_t i = 0; i < all->n; i++)
        nbytes += all->parts[i].nbytes;
    return nbytes;
}

static void svg_print_legends(svg *s)
{
    const map *m = s->m;

    s->y += TEXT_HEIGHT;
    svg_print_legend_of_dtypes(s);
    for (unsigned i = 0; i < PART_N_KINDS; i++)
        if (i != PART_STORAGE && m->kinds[i] > 0)
            svg_print_legend(s, part_kind_names[i], part_kind_texts[i], m->kinds[i]);
    if (m->shared.n > 0)
        svg_print_legend(s, "shared", "several tensors", parts_nbytes(&m->shared));
    if (m->has_extents)
        svg_print_legend(s, "even", "extents on disk", parts_nbytes(&m->extents));
    if (m->has_cache)
        svg_print_legend(s, "cached", "in the page cache", m->cached_nbytes);
}

static double svg_legend_height(const map *m)
{
    int n = svg_n_lanes(m);

    for (unsigned i = 0; i < BERTH_DTYPE_COUNT; i++)
        n += m->dtypes[i] > 0;
    for (unsigned i = 0; i < PART_N_KINDS; i++)
        n += i != PART_STORAGE && m->kinds[i] > 0;
    return TEXT_HEIGHT * (n + 1.0);
}

/* ---- all ---- */

static void svg_print_head(svg *s)
{
    const map *m = s->m;
    char text[128], nbytes[32];
    size_t n_shared = map_count_shared(m);

    snprintf(text, sizeof text, "%.48s", file_name(m->path));
    s->y = TEXT_HEIGHT;
    svg_print_text(s, MARGIN, "b", text);
    s->y += TEXT_HEIGHT;
    snprintf(text, sizeof text, "%s, %s, %zu storage%s, %zu tensor%s",
             human_nbytes(m->nbytes, nbytes), m->container, m->n_storages, plural(m->n_storages),
             m->n_tensors, plural(m->n_tensors));
    svg_print_text(s, MARGIN, "f", text);
    s->y += TEXT_HEIGHT;
    snprintf(text, sizeof text, "%zu with several tensors", n_shared);
    size_t n = strlen(text);
    if (m->has_extents)
        snprintf(text + n, sizeof text - n, "; %zu extent%s on disk", m->n_extents,
                 plural(m->n_extents));
    svg_print_text(s, MARGIN, "f", text);
}

/*
 * For programs: every storage, as [offset or null, bytes, index of its dtype, tensors], in the
 * file's order.
 */
static void print_metadata(const map *m, FILE *out)
{
    fprintf(out, "<metadata>{\"nbytes\":%" PRIu64 ",\n\"dtypes\":[", m->nbytes);
    for (unsigned i = 0; i < BERTH_DTYPE_COUNT; i++)
        fprintf(out, "%s\"%s\"", i ? "," : "", berth_dtype_name((berth_dtype)i));
    fputs("],\n\"storages\":[", out);
    for (size_t i = 0; i < m->n_storages; i++) {
        const map_storage *storage = &m->storages[i];
        fputs(i ? ",\n[" : "\n[", out);
        if (storage->offset == BERTH_NO_OFFSET)
            fputs("null", out);
        else
            fprintf(out, "%" PRIu64, storage->offset);
        fprintf(out, ",%" PRIu64 ",%d,%zu]", storage->nbytes, (int)storage->dtype,
                storage->n_tensors);
    }
    fputs("\n]}</metadata>\n", out);
}

void map_print_svg(const map *m, FILE *out)
{
    svg s = {.m = m, .out = out, .n_rows = map_n_rows(m, MAX_ROWS)};
    double height =
        3 * TEXT_HEIGHT + 12 + (double)s.n_rows * svg_row_height(m) + svg_legend_height(m) + MARGIN;

    s.row_nbytes = m->nbytes / s.n_rows + (m->nbytes % s.n_rows > 0);
    s.row_nbytes += s.row_nbytes == 0;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"100%%\" "
            "role=\"img\">\n<title>Map of ",
            WIDTH, height);
    print_xml(out, file_name(m->path));
    fputs("</title>\n", out);
    print_metadata(m, out);
    print_style(out);
    svg_print_head(&s);
    s.y += 12;
    for (size_t i = 0; i < s.n_rows; i++, s.row_begin += s.row_nbytes)
        svg_draw_row(&s);
    svg_print_legends(&s);
    fputs("</svg>\n", out);
}
