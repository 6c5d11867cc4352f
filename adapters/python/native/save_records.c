/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * save_records_begin(records, target, archive_name, byteorder_last, snapshot): records that PyTorch
 * has pickled, as (name, data, nbytes, owner). data is bytes, the address of the owner's memory, or
 * None for zeros.
 */
#include "adapters/python/native/native.h"

/* What skip_data leaves out: PyTorch writes zeros, and no CRC. */
static int read_zeros(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    (void)offset;
    memset(buffer, 0, nbytes);
    return 0;
}

static int set_record(berth_new_record *record, PyObject *item)
{
    PyObject *data, *owner;
    unsigned long long nbytes;
    if (!PyArg_ParseTuple(item, "sOKO", &record->name, &data, &nbytes, &owner))
        return -1;
    record->nbytes = nbytes;
    if (data == Py_None) {
        record->read = read_zeros;
        record->no_crc32 = true;
    } else if (PyBytes_Check(data)) {
        record->data = PyBytes_AsString(data);
    } else {
        record->data = PyLong_AsVoidPtr(data);
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* The records of a tuple; NULL: an exception is raised. To be freed. */
static berth_new_record *records_of(PyObject *tuple, size_t n)
{
    berth_new_record *records = PyMem_Calloc(n + 1, sizeof *records);
    if (!records)
        return PyErr_NoMemory(), NULL;
    for (size_t i = 0; i < n; i++) {
        if (set_record(&records[i], PyTuple_GetItem(tuple, (Py_ssize_t)i)) < 0) {
            PyMem_Free(records);
            return NULL;
        }
    }
    return records;
}

PyObject *bpy_save_records_begin(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *list, *target;
    const char *archive_name;
    int byteorder_last, snapshot;
    if (!PyArg_ParseTuple(arguments, "OOzpp", &list, &target, &archive_name, &byteorder_last,
                          &snapshot))
        return NULL;
    bpy_saver saver = {0};
    PyObject *tuple = PySequence_Tuple(list); /* nobody can change it meanwhile */
    if (!tuple || bpy_saver_keep(&saver, tuple) < 0)
        return NULL;
    size_t n = (size_t)PyTuple_Size(tuple);
    berth_new_record *records = records_of(tuple, n);
    if (!records) {
        bpy_saver_free(&saver);
        return NULL;
    }
    const berth_content content =
        berth_of_records(records, n, byteorder_last ? BERTH_RECORDS_BYTEORDER_LAST : 0);
    PyObject *job =
        bpy_job_begin(&saver, target, &content, archive_name, snapshot ? BERTH_SAVE_SNAPSHOT : 0);
    PyMem_Free(records);
    return job;
}
