/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/pickle/pickle.h" /* until load/ and tests/ include it */
