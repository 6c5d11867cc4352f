/* SPDX-License-Identifier: BSD-3-Clause */
/* berth verify, of a DCP directory: every piece, as the file of torch.save that it is. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/files.h"
#include "tools/common/globals.h"
#include "tools/common/options.h"
#include "tools/common/progress.h"
#include "tools/common/report.h"
#include "tools/dcp/dcp.h"

typedef struct dcp_findings {
    files *files;
    dcp *d;
    json_t *bad; /* with --json */
    size_t n_pieces, n_bad, n_refused, n_verified, n_unverified;
    dcp_notes notes; /* globals: also of the pieces that are whole and refused for what they name */
    uint64_t done_nbytes, total_nbytes;
    progress bar;
} dcp_findings;

static int findings_progress(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    dcp_findings *found = context;

    (void)total_nbytes;
    return progress_report(&found->bar, found->done_nbytes + done_nbytes, found->total_nbytes);
}

/* A piece that is bad, or whole and refused. */
static void findings_add(dcp_findings *found, const dcp_entry *entry, const dcp_piece *piece,
                         bool is_intact, const berth_error *error)
{
    if (found->bad) {
        json_array_append_new(
            found->bad, json_pack("{s:o,s:o,s:I,s:I,s:b,s:o}", "name", text_json(entry->name), "in",
                                  text_json(piece->file), "offset", (json_int_t)piece->offset,
                                  "nbytes", (json_int_t)piece->nbytes, "intact", is_intact,
                                  "reason", text_json(error->message)));
        return;
    }
    files_print_prefix(found->files);
    fputs("\"", stdout);
    print_shown(stdout, entry->name);
    fputs("\": ", stdout);
    print_shown(stdout, error->message);
    putchar('\n');
}

/* Of the bytes that are to be read. */
static uint64_t piece_nbytes(const dcp_piece *piece)
{
    return piece->broken ? 0 : piece->nbytes;
}

/* Every record of the piece; then, of a tensor, that it is the one that is expected. A piece that
 * is not there, or that cannot be read, is bad; the others are verified all the same. */
static int verify_piece(dcp_findings *found, const dcp_entry *entry, dcp_piece *piece,
                        dcp_chunk *chunk)
{
    const berth_params params = {.progress = findings_progress, .progress_context = found};
    berth_verdict verdict = {0};
    berth_error error;
    int status = piece->broken ? error_set(&error, BERTH_E_TRUNCATED, "%s", piece->broken)
                               : dcp_piece_verify(piece, &params, &verdict, &error);

    if (status == 0 && chunk)
        status = dcp_chunk_open(entry, chunk, &error);
    if (status == BERTH_E_MEMORY || status == BERTH_E_CANCELLED)
        return fail(&error);
    found->n_pieces++;
    found->done_nbytes += piece_nbytes(piece);
    found->n_verified += verdict.n_verified;
    found->n_unverified += verdict.n_unverified;
    if (status == 0)
        return 0;
    bool is_intact = verdict.is_intact && error.code == BERTH_E_FORBIDDEN;
    found->n_bad += !is_intact;
    if (error.code == BERTH_E_FORBIDDEN) {
        const berth_source source = dcp_piece_source(piece);
        found->n_refused += verdict.is_intact;
        globals_add(&source, &found->notes.globals);
    }
    findings_add(found, entry, piece, is_intact, &error);
    return 0;
}

static int verify_entry(dcp_findings *found, dcp_entry *entry)
{
    int code = entry->is_bytes ? verify_piece(found, entry, &entry->piece, NULL) : 0;

    for (size_t i = 0; entry->chunks && i < entry->n_chunks && !code; i++)
        code = verify_piece(found, entry, &entry->chunks[i].piece, &entry->chunks[i]);
    return code;
}

static json_t *findings_json(const dcp_findings *found, bool is_ok, bool is_intact)
{
    const dcp_notes *n = &found->notes;
    const char *reason = n->refused ? n->refused : n->broken;
    json_t *report = json_pack(
        "{s:b,s:b,s:b,s:I,s:I,s:I,s:I,s:I,s:O}", "ok", is_ok, "intact", is_intact, "allowed",
        found->n_refused == 0 && found->notes.globals.n_refused == 0, "pieces",
        (json_int_t)found->n_pieces, "values", (json_int_t)found->d->n_entries, "verified",
        (json_int_t)found->n_verified, "unverified", (json_int_t)found->n_unverified, "nbytes",
        (json_int_t)found->done_nbytes, "bad", found->bad);

    if (reason)
        json_object_set_new(report, "reason", text_json(reason));
    return report;
}

/* Of `.metadata` itself: the first that it names and should not; and why it cannot be read. */
static void findings_print_metadata(const dcp_findings *found)
{
    const dcp_notes *n = &found->notes;

    if (n->refused) {
        files_print_prefix(found->files);
        print_shown(stdout, n->refused);
        putchar('\n');
    }
    if (!n->broken)
        return;
    files_print_prefix(found->files);
    printf("%sbad%s: ", paint(RED), paint(PLAIN));
    print_shown(stdout, n->broken);
    (void)globals_print_refused(&n->globals, "; it ");
    putchar('\n');
}

static int findings_print(dcp_findings *found, const common *options, const berth_stats *stats)
{
    const dcp_notes *n = &found->notes;
    bool is_intact = found->n_bad == 0 && !n->broken;
    bool is_ok = is_intact && found->n_refused == 0 && !n->refused;
    char text[32];

    if (found->bad) {
        json_t *report = findings_json(found, is_ok, is_intact);
        globals_add(NULL, &found->notes.globals);
        globals_set_json(&found->notes.globals, report);
        if (options->stats)
            json_object_set_new(report, "stats", stats_json(stats));
        int printed = files_print_json(found->files, report);
        return printed ? printed : is_ok ? EXIT_YES : EXIT_NO;
    }
    if (n->broken || n->refused)
        findings_print_metadata(found);
    if (n->broken)
        return print_stats_if_requested(options, stats, finish_output(EXIT_NO));
    files_print_prefix(found->files);
    if (is_intact)
        printf("%s%s%s: %zu values in %zu pieces, %s; %zu checksums match",
               paint(is_ok ? GREEN : YELLOW), is_ok ? "ok" : "intact", paint(PLAIN),
               found->d->n_entries, found->n_pieces, human_nbytes(found->done_nbytes, text),
               found->n_verified);
    else
        printf("%sbad%s: %zu of %zu pieces", paint(RED), paint(PLAIN), found->n_bad,
               found->n_pieces);
    if (is_intact && found->n_unverified)
        printf(", %zu records have none and are unverified", found->n_unverified);
    if (!globals_print_refused(&found->notes.globals, "; it ") && found->n_refused > 0)
        printf("; but %zu of its pieces are not allowed", found->n_refused);
    putchar('\n');
    return print_stats_if_requested(options, stats, finish_output(is_ok ? EXIT_YES : EXIT_NO));
}

static void findings_count_nbytes(dcp_findings *found)
{
    for (size_t i = 0; i < found->d->n_entries; i++) {
        const dcp_entry *entry = &found->d->entries[i];
        found->total_nbytes += entry->is_bytes ? piece_nbytes(&entry->piece) : 0;
        for (size_t k = 0; k < entry->n_chunks; k++)
            found->total_nbytes += piece_nbytes(&entry->chunks[k].piece);
    }
}

/* A piece that is not in its file. */
static void notes_add_piece(dcp_notes *notes, const char *path, const dcp_entry *entry,
                            const dcp_piece *piece)
{
    if (piece->broken && !notes->broken &&
        asprintf(&notes->broken, "%s/.metadata: \"%s\": %s", path, entry->name, piece->broken) < 0)
        notes->broken = NULL;
}

bool dcp_find_notes(const char *path, dcp_notes *notes)
{
    dcp *d = NULL;
    berth_error error;

    *notes = (dcp_notes){.broken = NULL};
    bool is_whole = dcp_read(path, notes, &d) == 0;
    for (size_t i = 0; is_whole && i < d->n_entries; i++) {
        dcp_piece *piece = &d->entries[i].piece;
        berth_checkpoint *checkpoint = NULL;
        for (size_t k = 0; k < d->entries[i].n_chunks; k++)
            notes_add_piece(notes, path, &d->entries[i], &d->entries[i].chunks[k].piece);
        notes_add_piece(notes, path, &d->entries[i], piece);
        if (!d->entries[i].is_bytes || piece->broken)
            continue;
        if (dcp_piece_open(piece, &checkpoint, &error) < 0 && error.code == BERTH_E_FORBIDDEN) {
            const berth_source source = dcp_piece_source(piece);
            globals_add(&source, &notes->globals);
            notes->refused = notes->refused ? notes->refused : strdup(error.message);
        }
        berth_close(checkpoint);
    }
    dcp_free(d);
    return !notes->broken && notes->refused;
}

int dcp_verify(files *all, const common *options)
{
    dcp_findings found = {.files = all};
    berth_stats stats = {0};
    berth_params params;
    int code = dcp_read(all->path, &found.notes, &found.d);
    bool is_broken = code == EXIT_NO && found.notes.broken;

    code = is_broken ? 0 : code;

    found.bad = options->json ? json_array() : NULL;
    progress_begin(&found.bar, "verify", options, &params, &stats);
    if (!code && !is_broken)
        findings_count_nbytes(&found);
    for (size_t i = 0; !code && !is_broken && i < found.d->n_entries; i++)
        code = verify_entry(&found, &found.d->entries[i]);
    progress_finish(&found.bar);
    stats.total_seconds = stats.transfer_seconds = progress_elapsed_seconds(&found.bar);
    stats.requested_nbytes = found.done_nbytes;
    stats.n_records = found.n_verified + found.n_unverified;
    if (!code)
        code = caught_signal_code_or(0) ? print_cancelled(all->path)
                                        : findings_print(&found, options, &stats);
    json_decref(found.bad);
    dcp_notes_free(&found.notes);
    dcp_free(found.d);
    return code;
}
