/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip/zip.h" /* until load/, save/ and tests/ include it */
