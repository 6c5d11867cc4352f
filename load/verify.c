/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_verify: opens a source, verifies it, closes it; looks for damage in what is refused. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/trace.h"
#include "load/checkpoint.h"
#include "load/errors_with_names.h"
#include "load/verify.h"

/*
 * Opening checks everything that the scan does not check. If it refuses the file, opens it again
 * with all headers checked: they may show an error in an earlier record.
 */
static int verify_open_checkpoint(const berth_source *source, struct berth_config *config,
                                  const berth_params *params, berth_stats *first,
                                  berth_checkpoint **checkpoint, berth_error *error)
{
    config->load_check = config->debug ? BTH_CHECK_HEADERS : BTH_CHECK_DIRECTORY;
    config->load_prefetch = BTH_PREFETCH_OFF; /* the scan reads all bytes */
    config->load_inflate = true;              /* Z12: what verification needs */
    if (bth_checkpoint_open(source, config, params, checkpoint, error) == 0 ||
        (!bth_verify_is_verdict(error) && error->code != BERTH_E_TENSOR))
        return error->code;
    bth_error_clear(error);
    if (params && params->stats)
        *first = *params->stats;
    config->load_check = BTH_CHECK_HEADERS;
    return bth_checkpoint_open(source, config, params, checkpoint, error);
}

/* Refused for what the file is, or for what its pickle names; the file itself can be whole. */
static bool verify_is_refusal(const berth_error *error)
{
    return error->code == BERTH_E_FORBIDDEN || error->code == BERTH_E_NOT_CHECKPOINT;
}

/* All of an open checkpoint. Closes it. */
static int verify_and_close(berth_checkpoint *checkpoint, const berth_params *params,
                            bth_verify_request *request, berth_error *error)
{
    request->scan.goes_on = bth_contents_are_zip(&checkpoint->contents);
    request->verdict.behind_nbytes = checkpoint->contents.behind_nbytes;
    if (bth_verify_checkpoint(checkpoint, request, error) == 0)
        (void)bth_checkpoint_check_all_indices(checkpoint, params, error);
    request->verdict.is_intact = bth_error_in_checkpoint(checkpoint, error) == 0;
    bth_params_set_checkpoint_stats(checkpoint, params);
    if (params && params->stats) /* without the reads of opening */
        params->stats->requested_nbytes = checkpoint->source.reader.nbytes;
    if (params && params->stats && request->scan.method) {
        params->stats->method = request->scan.method;
        params->stats->reason = request->scan.reason;
    }
    berth_close(checkpoint);
    return error->code;
}

/*
 * A file that was refused, but not for damage, or whose pickle the disk cannot read: looks for
 * damage. First as a checkpoint whose unknown classes are kept as they are, then as an archive of
 * records. The refusal stays the error if there is none.
 */
static int verify_refused(const berth_source *source, struct berth_config *config,
                          const berth_params *params, bth_verify_request *request,
                          berth_error *error)
{
    const berth_error refusal = *error;
    berth_error opened = {.code = BERTH_OK};
    berth_checkpoint *checkpoint = NULL;
    berth_stats first = {0};
    bool *is_intact = &request->verdict.is_intact;

    bth_error_clear(error);
    request->scan.goes_on = true; /* after what the disk cannot read */
    config->load_unknown_globals = BTH_UNKNOWN_INERT;
    if (refusal.code == BERTH_E_FORBIDDEN) {
        if (verify_open_checkpoint(source, config, params, &first, &checkpoint, error) == 0) {
            if (verify_and_close(checkpoint, params, request, error) == 0)
                *error = refusal;
            return error->code;
        }
        opened = *error;
        if (!verify_is_refusal(error) && !bth_verify_is_verdict(error) &&
            error->code != BERTH_E_PICKLE && error->code != BERTH_E_TENSOR)
            return error->code; /* it cannot be read */
        bth_error_clear(error);
    }
    if (bth_archive_verify(source, config, params, request, error) == 0) {
        /* All its records are good. A pickle that makes no sense is what its writer wrote only if a
         * checksum says so. */
        bool is_whole = opened.code == BERTH_E_PICKLE || opened.code == BERTH_E_TENSOR
                            ? request->verdict.n_unverified == 0
                            : opened.code == 0 || verify_is_refusal(&opened) ||
                                  opened.code == BERTH_E_UNSUPPORTED;
        *is_intact = is_whole && !bth_error_is_of_bad_disk(&refusal);
    }
    if (*is_intact || error->code == BERTH_E_NOT_CHECKPOINT) /* whole, or no archive at all */
        *error = *is_intact || opened.code == 0 ? refusal : opened;
    else if (error->code == 0)
        *error = opened.code ? opened : refusal;
    return error->code;
}

/* After the arguments are checked; params: with statistics, if it is traced. */
static int verify_source(const berth_source *source, const struct berth_config *config,
                         const berth_params *params, bth_verify_request *request,
                         berth_error *error)
{
    struct berth_config own = *config;
    berth_checkpoint *checkpoint = NULL;
    berth_stats first = {0};

    request->scan.params = params;
    bool is_open = verify_open_checkpoint(source, &own, params, &first, &checkpoint, error) == 0;
    if (is_open)
        (void)verify_and_close(checkpoint, params, request, error);
    if (params && params->stats) { /* if the file was opened twice */
        params->stats->total_seconds += first.total_seconds;
        params->stats->plan_seconds += first.total_seconds;
        params->stats->moved_nbytes += first.moved_nbytes;
        params->stats->n_requests += first.n_requests;
    }
    if (!is_open && (verify_is_refusal(error) || bth_error_is_of_bad_disk(error)))
        return verify_refused(source, &own, params, request, error);
    return error->code;
}

/* ---- further objects behind one of the legacy format ---- */

/* No program is known that writes so many. Each is opened by itself, which takes a read of a head.
 */
enum { MAX_LATER_OBJECTS = 1000 };

/* What is behind an object, as a source of its own. */
typedef struct later_objects {
    bth_reader file;
    uint64_t begin;
    const bth_verify_request *request; /* of the first object */
} later_objects;

static int later_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    later_objects *later = context;
    berth_error error;

    bth_error_clear(&error);
    if (bth_reader_read(&later->file, buffer, nbytes, later->begin + offset, &error) == 0)
        return 0;
    return error.system_errno ? error.system_errno : EIO;
}

static void later_report(void *context, const berth_record_verdict *record)
{
    const later_objects *later = context;
    berth_record_verdict moved = *record;

    moved.offset += later->begin;
    later->request->report(later->request->context, &moved);
}

/* Adds to the verdict what is found of the object at later->begin. *rest: the bytes behind it. A
 * refusal of one before it stays. */
static int later_verify(later_objects *later, const struct berth_config *config,
                        const berth_params *params, bth_verify_request *request, uint64_t *rest,
                        berth_error *error)
{
    bth_verify_request own = {.report = request->report ? later_report : NULL, .context = later};
    berth_verdict *all = &request->verdict;
    const berth_verdict *verdict = &own.verdict;
    berth_params quiet = params ? *params : (berth_params){.progress = NULL};
    berth_error found;
    size_t capacity = strlen(later->file.name) + 64;
    char *name = bth_allocate(capacity);

    if (!name)
        return bth_fail_memory(error, capacity);
    (void)snprintf(name, capacity, "%s from byte %" PRIu64 " on", later->file.name, later->begin);
    bth_error_clear(&found);
    quiet.stats = NULL; /* those of the first opening stay */
    const berth_source source =
        berth_from_function(later_read, later, later->file.nbytes - later->begin, name);
    if (verify_source(&source, config, &quiet, &own, &found) < 0)
        (void)bth_later_object_explain(&later->file, later->begin, &found);
    all->n_records += verdict->n_records;
    all->n_storages += verdict->n_storages;
    all->n_verified += verdict->n_verified;
    all->n_unverified += verdict->n_unverified;
    all->n_bad += verdict->n_bad;
    all->nbytes += verdict->nbytes;
    all->is_intact = verdict->is_intact;
    *rest = verdict->behind_nbytes;
    if (found.code < 0 && (error->code == 0 || !verdict->is_intact))
        *error = found;
    bth_release(name);
    return error->code;
}

/* All that are behind the first, which is whole, up to one that is not. */
static int verify_later_objects(const berth_source *source, const struct berth_config *config,
                                const berth_params *params, bth_verify_request *request,
                                berth_error *error)
{
    later_objects later = {.request = request};
    uint64_t rest = request->verdict.behind_nbytes;
    berth_error unopened;

    bth_error_clear(&unopened);
    if (bth_reader_open_source(source, &later.file, &unopened) < 0) {
        *error = unopened;
        return bth_error_prefix(error, bth_source_name(source));
    }
    for (size_t i = 0; i < MAX_LATER_OBJECTS && rest > 0 && request->verdict.is_intact; i++) {
        later.begin = later.file.nbytes - rest;
        (void)later_verify(&later, config, params, request, &rest, error);
    }
    if (rest > 0 && request->verdict.is_intact && error->code == 0) {
        request->verdict.is_intact = false;
        (void)bth_fail(
            error, BERTH_E_UNSUPPORTED, NULL, later.file.nbytes - rest,
            "more than %d objects behind the first: those from here on were not looked at",
            MAX_LATER_OBJECTS);
        (void)bth_error_prefix(error, later.file.name);
    }
    bth_reader_close(&later.file);
    return error->code;
}

int berth_verify(const berth_source *source, const berth_params *params,
                 berth_record_function report, void *context, berth_verdict *verdict,
                 berth_error *error)
{
    bth_verify_request request = {.report = report, .context = context};
    struct berth_config config;
    bth_traced_call traced;

    BTH_ERROR_BEGIN(error);
    bth_params_initialize_stats(params);
    if (verdict)
        *verdict = request.verdict;
    if (bth_config_copy_for_operation(params, &config, error) < 0)
        return error->code;
    params = bth_traced_call_begin(&traced, config.trace, "verify",
                                   source ? bth_source_name(source) : NULL, bth_seconds(), params);
    if ((verify_source(source, &config, params, &request, error) == 0 ||
         request.verdict.is_intact) &&
        request.verdict.behind_nbytes > 0)
        (void)verify_later_objects(source, &config, params, &request, error);
    /* The seconds of the statistics are those of openings, not all of them. */
    bth_traced_call_end(&traced, bth_seconds(), error);
    if (verdict)
        *verdict = request.verdict;
    return error->code;
}
