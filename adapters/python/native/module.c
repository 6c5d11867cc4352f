/* SPDX-License-Identifier: BSD-3-Clause */
/* The module berth._native. */
#include "adapters/python/native/native.h"

static PyObject *version(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyUnicode_FromString(berth_version());
}

static PyMethodDef functions[] = {
    {"version", version, METH_NOARGS, "version()\n--\n\nThe library's version."},
    {"save_begin", bpy_save_begin, METH_VARARGS,
     "save_begin(value, target, archive_name, snapshot, safetensors=False)\n--\n\n"
     "Begins to save to a path (bytes), a descriptor (int) or a function that writes bytes.\n"
     "snapshot: the tensors are copied first. safetensors: the format. Returns a Job."},
    {"save_specs_begin", bpy_save_specs_begin, METH_VARARGS,
     "save_specs_begin(rows, target, metadata, owner)\n--\n\n"
     "The same of a safetensors file of rows (name, dtype, shape, address)."},
    {"dtype_nbytes", bpy_dtype_nbytes, METH_O, "dtype_nbytes(name)\n--\n\n"},
    {"save_records_begin", bpy_save_records_begin, METH_VARARGS,
     "save_records_begin(records, target, archive_name, byteorder_last, snapshot)\n--\n\n"
     "The same of the records of an archive: (name, bytes, address or None for zeros, nbytes,\n"
     "owner of the address)."},
    {"has_device", bpy_has_device, METH_O, "has_device(name)\n--\n\n"},
    {"is_open_for_writing", bpy_is_open_for_writing, METH_VARARGS,
     "is_open_for_writing(device, inode)\n--\n\n"
     "Whether a descriptor of this process can write to the file. False also without /proc."},
    {"verify", bpy_verify, METH_O, "verify(source)\n--\n\n"},
    {"show_text", bpy_show_text, METH_O, "show_text(text)\n--\n\n"},
    {"url_shown", bpy_url_shown, METH_O, "url_shown(url)\n--\n\n"},
    {"url_beside", bpy_url_beside, METH_VARARGS,
     "url_beside(url, name)\n--\n\nThe URL of a file in the folder of another, or below it."},
    {"read_url", bpy_read_url, METH_VARARGS,
     "read_url(url, max_nbytes)\n--\n\nAll bytes; None: there are more."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "berth._native",
    .m_doc = "What the package berth does in C; not part of its interface.",
    .m_size = -1, /* torch's types are the process's */
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    bpy_gil_make();
    if (bpy_names_make() < 0 || bpy_checkpoint_type_add(module) < 0 ||
        bpy_archive_type_add(module) < 0 || bpy_pinned_type_add(module) < 0 ||
        bpy_job_type_add(module) < 0 || bpy_rows_types_add(module) < 0 ||
        bpy_joint_type_add(module) < 0 || PyModule_AddFunctions(module, bpy_fork_functions) < 0 ||
        PyModule_AddFunctions(module, bpy_handler_functions) < 0 ||
        PyModule_AddFunctions(module, bpy_option_functions) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
