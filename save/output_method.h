/* SPDX-License-Identifier: BSD-3-Clause */
/* The I/O method of a save to a file: save.method, or chosen from conditions. */
#ifndef BTH_SAVE_OUTPUT_METHOD_H
#define BTH_SAVE_OUTPUT_METHOD_H

#include "config/options.h"

/* For a file of nbytes bytes that is open as `fd`. Returns the reason, a static text. */
const char *bth_output_method_choose(const struct berth_config *config, int fd, uint64_t nbytes,
                                     bool *is_direct);

#endif
