/* SPDX-License-Identifier: BSD-3-Clause */
/* What a build without libcurl's headers has, too. */
#ifndef BCURL_NAMES_H
#define BCURL_NAMES_H

#include <stddef.h>

#include "adapters/curl/berth_curl.h"

/* The bytes of "https://", "http://" or "s3://" at the text's beginning; 0: there is none. */
size_t bcurl_scheme_nbytes(const char *text);

#endif
