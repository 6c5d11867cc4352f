/* SPDX-License-Identifier: BSD-3-Clause */
/* The same functions, for a build without libcurl's headers. */
#include <stdio.h>
#include <string.h>

#include "adapters/curl/berth_curl.h"

static int fail_without(berth_error *error)
{
    if (!error)
        return BERTH_E_UNAVAILABLE;
    memset(error, 0, sizeof *error);
    error->code = BERTH_E_UNAVAILABLE;
    error->offset = BERTH_NO_OFFSET;
    (void)snprintf(
        error->message, sizeof error->message,
        "this Berth was built without libcurl's headers, and knows no URLs: build it with "
        "libcurl4-openssl-dev");
    return error->code;
}

int berth_source_url(const char *url, const berth_url_params *params, berth_source *source,
                     berth_error *error)
{
    (void)url;
    (void)params;
    memset(source, 0, sizeof *source);
    return fail_without(error);
}

int berth_save_url(const char *url, const berth_content *content, const berth_params *params,
                   const berth_upload_params *upload_params, berth_error *error)
{
    (void)url;
    (void)content;
    (void)params;
    (void)upload_params;
    return fail_without(error);
}

int berth_upload_begin(const char *url, uint64_t nbytes, const berth_upload_params *params,
                       berth_upload **upload, berth_error *error)
{
    (void)url;
    (void)nbytes;
    (void)params;
    *upload = NULL;
    return fail_without(error);
}

const berth_sink *berth_upload_sink(const berth_upload *upload)
{
    (void)upload;
    return NULL;
}

int berth_upload_explain(berth_upload *upload, berth_error *error)
{
    (void)upload;
    return error ? error->code : 0;
}

int berth_upload_end(berth_upload *upload, berth_error *error)
{
    (void)upload;
    (void)error;
    return 0;
}

int berth_source_url_tune(const berth_source *source, berth_config *config, berth_error *error)
{
    (void)source;
    (void)config;
    (void)error;
    return 0;
}

int berth_source_url_explain(const berth_source *source, berth_error *error)
{
    (void)source;
    return error ? error->code : 0;
}

void berth_source_url_free(berth_source *source)
{
    (void)source;
}

int berth_clean_uploads(const char *url, uint32_t flags, double min_age_seconds,
                        const berth_url_params *params, berth_temporary_function found,
                        void *context, berth_error *error)
{
    (void)url;
    (void)flags;
    (void)min_age_seconds;
    (void)params;
    (void)found;
    (void)context;
    return fail_without(error);
}

int berth_joint_url_begin(const char *url, const berth_value *outline, size_t n_writers,
                          const berth_params *params, const berth_upload_params *upload_params,
                          berth_joint_url **joint, berth_joint_info *info, berth_error *error)
{
    (void)url;
    (void)outline;
    (void)n_writers;
    (void)params;
    (void)upload_params;
    (void)info;
    *joint = NULL;
    return fail_without(error);
}

int berth_joint_url_write(const void *ticket, size_t ticket_nbytes, size_t writer,
                          berth_joint_url *joint, const berth_slice *slices, size_t n_slices,
                          const berth_params *params, const berth_upload_params *upload_params,
                          char **receipt, size_t *receipt_nbytes, berth_error *error)
{
    (void)ticket;
    (void)ticket_nbytes;
    (void)writer;
    (void)joint;
    (void)slices;
    (void)n_slices;
    (void)params;
    (void)upload_params;
    *receipt = NULL;
    *receipt_nbytes = 0;
    return fail_without(error);
}

int berth_joint_url_add_receipt(berth_joint_url *joint, size_t writer, const void *receipt,
                                size_t nbytes, berth_error *error)
{
    (void)joint;
    (void)writer;
    (void)receipt;
    (void)nbytes;
    return fail_without(error);
}

int berth_joint_url_finish(berth_joint_url *joint, berth_error *error)
{
    (void)joint;
    return fail_without(error);
}

int berth_joint_url_abort(berth_joint_url *joint, berth_error *error)
{
    (void)joint;
    (void)error;
    return 0;
}
