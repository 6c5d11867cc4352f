/* SPDX-License-Identifier: BSD-3-Clause */
#ifndef BTH_LOAD_ARCHIVE_H
#define BTH_LOAD_ARCHIVE_H

#include "load/verify_records.h"

/* Opens an archive, verifies it, closes it. BERTH_E_NOT_CHECKPOINT: it is none. */
int bth_archive_verify(const berth_source *source, const struct berth_config *config,
                       const berth_params *params, bth_verify_request *request, berth_error *error);

#endif
