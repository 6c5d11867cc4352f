/* SPDX-License-Identifier: BSD-3-Clause */
/* What a build without libcurl's headers has, too. */
#ifndef BCURL_NAMES_H
#define BCURL_NAMES_H

#include <stddef.h>

#include "adapters/curl/berth_curl.h"

/* The bytes of "https://", "http://" or "s3://" at the text's beginning; 0: there is none. */
size_t bcurl_scheme_nbytes(const char *text);
/*
 * Whether what libcurl takes for the host, path or query of a URL or a proxy can be a part of a
 * password, with characters that should be percent-encoded.
 */
bool bcurl_may_hide_password(const char *text);

#endif
