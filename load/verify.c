/* SPDX-License-Identifier: BSD-3-Clause */
/* berth_verify: opens a source, verifies it, closes it. */
#include "config/error.h"
#include "io/clock.h"
#include "load/checkpoint.h"
#include "load/traced_call.h"

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
    if (bth_checkpoint_open(source, config, params, checkpoint, error) == 0 || config->debug ||
        (!bth_verify_is_verdict(error) && error->code != BERTH_E_TENSOR))
        return error->code;
    bth_error_clear(error);
    if (params && params->stats)
        *first = *params->stats;
    config->load_check = BTH_CHECK_HEADERS;
    return bth_checkpoint_open(source, config, params, checkpoint, error);
}

/* Adds the statistics of the first opening, if the file was opened twice. */
static void verify_add_first_stats(const berth_params *params, const berth_stats *first)
{
    if (!params || !params->stats)
        return;
    params->stats->total_seconds += first->total_seconds;
    params->stats->plan_seconds += first->total_seconds;
    params->stats->moved_nbytes += first->moved_nbytes;
    params->stats->n_requests += first->n_requests;
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
    if (verify_open_checkpoint(source, &own, params, &first, &checkpoint, error) < 0) {
        verify_add_first_stats(params, &first);
        return error->code;
    }
    request->scan.goes_on = bth_contents_are_zip(&checkpoint->contents);
    if (bth_verify_checkpoint(checkpoint, request, error) == 0)
        (void)bth_checkpoint_check_all_indices(checkpoint, params, error);
    (void)bth_error_in_checkpoint(checkpoint, error);
    bth_params_set_checkpoint_stats(checkpoint, params);
    if (params && params->stats)
        params->stats->requested_nbytes =
            checkpoint->source.reader.nbytes; /* without the reads of opening */
    if (params && params->stats && request->scan.method) {
        params->stats->method = request->scan.method;
        params->stats->reason = request->scan.reason;
    }
    verify_add_first_stats(params, &first);
    berth_close(checkpoint);
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
    (void)verify_source(source, &config, params, &request, error);
    /* The seconds of the statistics are those of openings, not all of them. */
    bth_traced_call_end_at(&traced, bth_seconds(), error);
    if (verdict)
        *verdict = request.verdict;
    return error->code;
}
