/* SPDX-License-Identifier: BSD-3-Clause */
/* Whether a file's bytes are in the page cache: told by reads that may not wait. */
#include "io/page_cache.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>

#define NBYTES 20000

#include "io/file_system.h"
#include "tests/support/io/small_file.h"

static bool is_told;
static unsigned n_told;

/* Tells that nothing is there; or does not know how. */
static int told_cachestat(int fd, void *range, void *counts, unsigned flags)
{
    (void)fd, (void)range, (void)counts, (void)flags;
    n_told++;
    errno = ENOSYS;
    return is_told ? 0 : -1;
}

static void open_a_file(void)
{
    begin_file(NBYTES);
    bth_system.cachestat = told_cachestat;
}

TestSuite(residency, .init = open_a_file, .fini = end_file);

/* ---- a file of a thousand pages, of which the test says what is there ---- */

#define PAGE ((off_t)sysconf(_SC_PAGESIZE))
#define N_PAGES 1000

static bool is_there[N_PAGES];
static unsigned n_asked, n_times[N_PAGES];
static int asked_fd;

static ssize_t told_preadv2(int from, const struct iovec *pieces, int n, off_t offset, int flags)
{
    cr_assert_eq(flags, RWF_NOWAIT);
    cr_assert_eq(n, 1);
    cr_assert_eq(pieces->iov_len, 1);
    cr_assert_lt(offset / PAGE, N_PAGES);
    asked_fd = from;
    n_asked++;
    n_times[offset / PAGE]++;
    if (is_there[offset / PAGE])
        return 1;
    errno = EAGAIN;
    return -1;
}

static void set_pages(size_t first, size_t end, bool value)
{
    for (size_t i = first; i < end; i++)
        is_there[i] = value;
}

Test(residency, is_of_nine_tenths_or_more)
{
    bth_system.preadv2 = told_preadv2;
    set_pages(0, N_PAGES, true);
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, (uint64_t)(N_PAGES * PAGE)), BTH_PAGE_CACHE_WARM);
    cr_expect_eq(n_asked, 64);
    set_pages(100, 160, false); /* 4 samples or 5 */
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, (uint64_t)(N_PAGES * PAGE)), BTH_PAGE_CACHE_WARM);
    set_pages(100, 300, false);
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, (uint64_t)(N_PAGES * PAGE)), BTH_PAGE_CACHE_COLD);
    /* A range is not its neighbours. */
    cr_expect_eq(bth_page_cache_probe(file_fd, (uint64_t)(300 * PAGE), (uint64_t)(200 * PAGE)),
                 BTH_PAGE_CACHE_WARM);
    cr_expect_eq(bth_page_cache_probe(file_fd, (uint64_t)(200 * PAGE), 1), BTH_PAGE_CACHE_COLD);
    cr_expect_eq(bth_page_cache_probe(file_fd, (uint64_t)(299 * PAGE), (uint64_t)PAGE + 1),
                 BTH_PAGE_CACHE_COLD);
}

Test(residency, asks_little_of_what_is_not_there_and_never_at_the_same_pages)
{
    unsigned most = 0;

    bth_system.preadv2 = told_preadv2;
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, (uint64_t)(N_PAGES * PAGE)), BTH_PAGE_CACHE_COLD);
    cr_expect_eq(n_asked, 7);
    for (int i = 0; i < 20; i++)
        (void)bth_page_cache_probe(file_fd, 0, (uint64_t)(N_PAGES * PAGE));
    for (size_t i = 0; i < N_PAGES; i++)
        most = n_times[i] > most ? n_times[i] : most;
    cr_expect_lt(most, 15, "what asking has brought would be taken for resident");
}

static int advised;

static int noting_fadvise(int of, off_t offset, off_t nbytes, int advice)
{
    (void)offset, (void)nbytes;
    cr_expect_neq(of, file_fd, "the caller's own description reads ahead as ever");
    advised = advice;
    return 0;
}

Test(residency, asks_by_a_description_that_does_not_read_ahead)
{
    bth_system.preadv2 = told_preadv2;
    bth_system.posix_fadvise = noting_fadvise;
    (void)bth_page_cache_probe(file_fd, 0, NBYTES);
    cr_expect_eq(advised, POSIX_FADV_RANDOM);
    cr_expect_neq(asked_fd, file_fd);
    cr_expect_eq(fcntl(asked_fd, F_GETFD), -1, "it is closed again");
}

static int refused_open(const char *what, int flags, mode_t mode)
{
    (void)what, (void)flags, (void)mode;
    errno = EACCES;
    return -1;
}

Test(residency, is_asked_of_the_file_itself_where_it_cannot_be_opened_again)
{
    bth_system.preadv2 = told_preadv2;
    bth_system.open = refused_open;
    set_pages(0, N_PAGES, true);
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, NBYTES), BTH_PAGE_CACHE_WARM);
    cr_expect_eq(asked_fd, file_fd);
}

/* Such a read could bring the page that it asks for. */
Test(residency, of_pages_that_the_system_does_not_have_is_not_asked_by_reads)
{
    bth_system.preadv2 = told_preadv2;
    set_pages(0, N_PAGES, true);
    is_told = true;
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, NBYTES), BTH_PAGE_CACHE_COLD);
    cr_expect_gt(n_told, 0);
    cr_expect_eq(n_asked, 0);
}

static ssize_t unable_preadv2(int from, const struct iovec *pieces, int n, off_t offset, int flags)
{
    (void)from, (void)pieces, (void)n, (void)offset, (void)flags;
    errno = EOPNOTSUPP;
    return -1;
}

Test(residency, is_unknown_where_nobody_tells)
{
    bth_system.preadv2 = unable_preadv2;
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, NBYTES), BTH_PAGE_CACHE_UNKNOWN);
}

/* ---- for real ---- */

Test(residency, of_a_file_that_was_just_written_and_of_one_that_was_sent_away)
{
    if (bth_file_system_query(file_fd).kind != BTH_ON_DISK)
        cr_skip_test("no disk here");
    bth_system_restore();
    free(test_read_file(path, &(size_t){0}));
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, NBYTES), BTH_PAGE_CACHE_WARM);
    int writing = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_eq(fsync(writing), 0);
    cr_assert_eq(posix_fadvise(writing, 0, 0, POSIX_FADV_DONTNEED), 0);
    (void)close(writing);
    cr_expect_eq(bth_page_cache_probe(file_fd, 0, NBYTES), BTH_PAGE_CACHE_COLD);
}

Test(residency, kinds_of_file_systems_are_told_apart)
{
    int shared = open("/dev/shm", O_RDONLY | O_CLOEXEC | O_DIRECTORY);

    if (shared >= 0) {
        bth_file_system found = bth_file_system_query(shared).kind;
        cr_expect(found == BTH_IN_MEMORY || found == BTH_ELSEWHERE);
    }
    (void)close(shared);
    cr_expect_eq(bth_file_system_query(-1).kind, BTH_ELSEWHERE);
}
