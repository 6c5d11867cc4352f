/* SPDX-License-Identifier: BSD-3-Clause */
/* The same to S3: rank 0 begins an upload, all send parts, rank 0 completes it. */
#include <berth_curl.h>
#include <stdlib.h>

#include "adapters/mpi/mpi_ranks.h"

static int url_begin(void **joint, const char *url, const berth_value *value, size_t n,
                     const berth_params *params, const void *how, berth_joint_info *info,
                     berth_error *error)
{
    berth_joint_url *made = NULL;
    int status = berth_joint_url_begin(url, value, n, params, how, &made, info, error);

    *joint = made;
    return status;
}

static int url_write(void *joint, const void *ticket, size_t ticket_nbytes, size_t writer,
                     const berth_slice *slices, size_t n_slices, const berth_params *params,
                     const void *how, void **receipt, size_t *receipt_nbytes, berth_error *error)
{
    char *text;
    int status = berth_joint_url_write(ticket, ticket_nbytes, writer, joint, slices, n_slices,
                                       params, how, &text, receipt_nbytes, error);

    *receipt = text;
    return status;
}

static int url_add_receipt(void *joint, size_t writer, const void *receipt, size_t nbytes,
                           berth_error *error)
{
    return berth_joint_url_add_receipt(joint, writer, receipt, nbytes, error);
}

static int url_finish(void *joint, berth_error *error)
{
    return berth_joint_url_finish(joint, error);
}

static int url_abort(void *joint, berth_error *error)
{
    return berth_joint_url_abort(joint, error);
}

int berth_mpi_save_url(MPI_Comm comm, const char *url, const berth_value *value,
                       const berth_slice *slices, size_t n_slices, const berth_params *params,
                       const struct berth_upload_params *upload_params, berth_error *error)
{
    static const bth_mpi_way way = {.begin = url_begin,
                                    .write = url_write,
                                    .add_receipt = url_add_receipt,
                                    .finish = url_finish,
                                    .abort = url_abort,
                                    .free_receipt = free};

    return bth_mpi_save(comm, &way, upload_params, url, value, slices, n_slices, params, error);
}
