/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/values/value.h" /* until load/, save/ and tests/ include it */
