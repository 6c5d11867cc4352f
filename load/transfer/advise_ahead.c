/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Short requests with gaps between them. The system reads ahead only where pages follow each other:
 * it would wait for the disk at each of these requests. Advice makes it read their pages, many at a
 * time.
 */
#include "base/memory.h"
#include "io/page_cache.h"
#include "io/syscalls.h"
#include "load/transfer/transfer.h"

/* Requests that are told together: while they are read, the next ones are on their way. */
#define STEP UINT64_C(256)
/* Longer ones are read ahead by the system, and could fill the memory. */
#define ADVISED_MAX_NBYTES (UINT64_C(256) << 10)
/* Shorter gaps hold one whole page at most: a disk reads that in less time than another request. */
#define ADVISED_GAP_NBYTES (2 * BTH_PAGE_NBYTES)

static uint64_t request_end(const bth_request *request)
{
    return request->offset + request->nbytes;
}

/* The bytes from the first to the last of n requests. */
static uint64_t requests_span_nbytes(const bth_request *requests, uint64_t n)
{
    return request_end(&requests[n - 1]) - requests[0].offset;
}

static bool transfer_is_known_to_be_warm(const bth_transfer *transfer)
{
    uint64_t nbytes = requests_span_nbytes(transfer->list, transfer->requests.n_requests);

    if (transfer->is_warm || transfer->is_cold)
        return transfer->is_warm;
    return bth_page_cache_probe(bth_reader_file(transfer->access->reader), transfer->list->offset,
                                nbytes) == BTH_PAGE_CACHE_WARM;
}

void bth_transfer_choose_advice(bth_transfer *transfer)
{
    const bth_request *first = transfer->list;

    transfer->is_advised = transfer->requests.n_requests > 1 && first->method == BERTH_LOAD_READ &&
                           first->nbytes <= ADVISED_MAX_NBYTES &&
                           bth_reader_file(transfer->access->reader) >= 0 &&
                           !transfer_is_known_to_be_warm(transfer);
}

void bth_transfer_advise_ahead(const bth_transfer *transfer, uint64_t task)
{
    const bth_request *list = transfer->list;
    uint64_t end = bth_min(task + 2 * STEP, transfer->requests.n_requests);

    if (task % STEP != 0)
        return;
    for (uint64_t i = task == 0 ? 0 : task + STEP, n; i < end; i += n) {
        for (n = 1; i + n < end; n++)
            if (list[i + n].offset - request_end(&list[i + n - 1]) >= ADVISED_GAP_NBYTES)
                break;
        (void)bth_system.posix_fadvise(
            bth_reader_file(transfer->access->reader), (off_t)list[i].offset,
            (off_t)requests_span_nbytes(&list[i], n), POSIX_FADV_WILLNEED);
    }
}
