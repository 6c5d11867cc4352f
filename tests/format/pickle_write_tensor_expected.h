/* SPDX-License-Identifier: BSD-3-Clause */
/* Made by pickle_write_expected.py tensors: as PyTorch 2.13 writes them. */
/* clang-format off */
#include <stddef.h>
#include <stdint.h>

/* For n items: the pickle's bytes and their CRC-32. */
struct expected_sum {
    size_t n;
    size_t nbytes;
    uint32_t crc32;
};

static const char expected_tensor[] =
    "\200\002" "ctorch._utils\012_rebuild_tensor_v2\012" "q\000" "(" "(" "X\007\000\000\000storage"
    "q\001" "ctorch\012FloatStorage\012" "q\002" "X\001\000\000\0000" "q\003" "X\003\000\000\000cpu"
    "q\004" "K\006" "t" "q\005" "Q" "K\000" "K\002" "K\003" "\206" "q\006" "K\003" "K\001" "\206"
    "q\007" "\211" "ccollections\012OrderedDict\012" "q\010" ")" "R" "q\011" "t" "q\012" "R" "q\013"
    ".";

static const char expected_views[] =
    "\200\002" "]" "q\000" "(" "ctorch._utils\012_rebuild_tensor_v2\012" "q\001" "(" "("
    "X\007\000\000\000storage" "q\002" "ctorch\012FloatStorage\012" "q\003" "X\001\000\000\0000"
    "q\004" "X\003\000\000\000cpu" "q\005" "K\006" "t" "q\006" "Q" "K\000" "K\002" "K\003" "\206"
    "q\007" "K\003" "K\001" "\206" "q\010" "\211" "ccollections\012OrderedDict\012" "q\011" ")" "R"
    "q\012" "t" "q\013" "R" "q\014" "h\001" "(" "(" "h\002" "h\003" "h\004" "h\005" "K\006" "t"
    "q\015" "Q" "K\003" "K\003" "\205" "q\016" "K\001" "\205" "q\017" "\211" "h\011" ")" "R" "q\020"
    "t" "q\021" "R" "q\022" "h\001" "(" "(" "h\002" "h\003" "h\004" "h\005" "K\006" "t" "q\023" "Q"
    "K\000" "K\003" "K\002" "\206" "q\024" "K\001" "K\003" "\206" "q\025" "\211" "h\011" ")" "R"
    "q\026" "t" "q\027" "R" "q\030" "h\014" "X\001\000\000\0000" "q\031" "h\005" "e" ".";

static const char expected_scalar_tensor[] =
    "\200\002" "ctorch._utils\012_rebuild_tensor_v2\012" "q\000" "(" "(" "X\007\000\000\000storage"
    "q\001" "ctorch\012LongStorage\012" "q\002" "X\001\000\000\0000" "q\003" "X\003\000\000\000cpu"
    "q\004" "K\001" "t" "q\005" "Q" "K\000" ")" ")" "\211" "ccollections\012OrderedDict\012" "q\006"
    ")" "R" "q\007" "t" "q\010" "R" "q\011" ".";

static const char expected_gradient[] =
    "\200\002" "ctorch._utils\012_rebuild_tensor_v2\012" "q\000" "(" "(" "X\007\000\000\000storage"
    "q\001" "ctorch\012DoubleStorage\012" "q\002" "X\001\000\000\0000" "q\003"
    "X\003\000\000\000cpu" "q\004" "K\002" "t" "q\005" "Q" "K\000" "K\002" "\205" "q\006" "K\001"
    "\205" "q\007" "\210" "ccollections\012OrderedDict\012" "q\010" ")" "R" "q\011" "t" "q\012" "R"
    "q\013" ".";

static const char expected_new_dtypes[] =
    "\200\002" "]" "q\000" "(" "ctorch._utils\012_rebuild_tensor_v3\012" "q\001" "(" "("
    "X\007\000\000\000storage" "q\002" "ctorch.storage\012UntypedStorage\012" "q\003"
    "X\001\000\000\0000" "q\004" "X\003\000\000\000cpu" "q\005" "K\004" "t" "q\006" "Q" "K\000"
    "K\002" "\205" "q\007" "K\001" "\205" "q\010" "\211" "ccollections\012OrderedDict\012" "q\011"
    ")" "R" "q\012" "ctorch\012uint16\012" "q\013" "t" "q\014" "R" "q\015" "h\001" "(" "(" "h\002"
    "h\003" "X\001\000\000\0001" "q\016" "h\005" "K\003" "t" "q\017" "Q" "K\000" "K\003" "\205"
    "q\020" "K\001" "\205" "q\021" "\211" "h\011" ")" "R" "q\022" "ctorch\012float8_e5m2\012"
    "q\023" "t" "q\024" "R" "q\025" "e" ".";

static const char expected_conjugate[] =
    "\200\002" "]" "q\000" "(" "ctorch._utils\012_rebuild_tensor_v2\012" "q\001" "(" "("
    "X\007\000\000\000storage" "q\002" "ctorch\012ComplexFloatStorage\012" "q\003"
    "X\001\000\000\0000" "q\004" "X\003\000\000\000cpu" "q\005" "K\002" "t" "q\006" "Q" "K\000"
    "K\002" "\205" "q\007" "K\001" "\205" "q\010" "\211" "ccollections\012OrderedDict\012" "q\011"
    ")" "R" "q\012" "}" "q\013" "X\004\000\000\000conj" "q\014" "\210" "s" "t" "q\015" "R" "q\016"
    "h\001" "(" "(" "h\002" "h\003" "X\001\000\000\0001" "q\017" "h\005" "K\002" "t" "q\020" "Q"
    "K\000" "K\002" "\205" "q\021" "K\001" "\205" "q\022" "\211" "h\011" ")" "R" "q\023" "}" "q\024"
    "(" "X\003\000\000\000neg" "q\025" "\210" "X\004\000\000\000conj" "q\026" "\210" "u" "t" "q\027"
    "R" "q\030" "h\001" "(" "(" "h\002" "ctorch\012FloatStorage\012" "q\031" "X\001\000\000\0002"
    "q\032" "h\005" "K\002" "t" "q\033" "Q" "K\000" "K\002" "\205" "q\034" "K\001" "\205" "q\035"
    "\211" "h\011" ")" "R" "q\036" "}" "q\037" "X\003\000\000\000neg" "q " "\210" "s" "t" "q!" "R"
    "q\042" "e" ".";

static const char expected_meta[] =
    "\200\002" "ctorch._utils\012_rebuild_meta_tensor_no_storage\012" "q\000" "("
    "ctorch\012float32\012" "q\001" "K\002" "\205" "q\002" "K\001" "\205" "q\003" "\211" "t" "q\004"
    "R" "q\005" ".";

static const char expected_parameter[] =
    "\200\002" "]" "q\000" "(" "ctorch._utils\012_rebuild_parameter\012" "q\001"
    "ctorch._utils\012_rebuild_tensor_v2\012" "q\002" "(" "(" "X\007\000\000\000storage" "q\003"
    "ctorch\012FloatStorage\012" "q\004" "X\001\000\000\0000" "q\005" "X\003\000\000\000cpu" "q\006"
    "K\002" "t" "q\007" "Q" "K\000" "K\002" "\205" "q\010" "K\001" "\205" "q\011" "\211"
    "ccollections\012OrderedDict\012" "q\012" ")" "R" "q\013" "t" "q\014" "R" "q\015" "\210" "h\012"
    ")" "R" "q\016" "\207" "q\017" "R" "q\020" "h\020" "e" ".";

static const char expected_parameter_with_state[] =
    "\200\002" "ctorch._utils\012_rebuild_parameter_with_state\012" "q\000" "("
    "ctorch._utils\012_rebuild_tensor_v2\012" "q\001" "(" "(" "X\007\000\000\000storage" "q\002"
    "ctorch\012FloatStorage\012" "q\003" "X\001\000\000\0000" "q\004" "X\003\000\000\000cpu" "q\005"
    "K\002" "t" "q\006" "Q" "K\000" "K\002" "\205" "q\007" "K\001" "\205" "q\010" "\211"
    "ccollections\012OrderedDict\012" "q\011" ")" "R" "q\012" "t" "q\013" "R" "q\014" "\211" "h\011"
    ")" "R" "q\015" "}" "q\016" "X\003\000\000\000tag" "q\017" "X\001\000\000\000x" "q\020" "s" "t"
    "q\021" "R" "q\022" ".";

static const char expected_attributes[] =
    "\200\002" "]" "q\000" "(" "ctorch._tensor\012_rebuild_from_type_v2\012" "q\001" "("
    "ctorch._utils\012_rebuild_tensor_v2\012" "q\002" "ctorch\012Tensor\012" "q\003" "(" "("
    "X\007\000\000\000storage" "q\004" "ctorch\012FloatStorage\012" "q\005" "X\001\000\000\0000"
    "q\006" "X\003\000\000\000cpu" "q\007" "K\002" "t" "q\010" "Q" "K\000" "K\002" "\205" "q\011"
    "K\001" "\205" "q\012" "\211" "ccollections\012OrderedDict\012" "q\013" ")" "R" "q\014" "t"
    "q\015" "}" "q\016" "X\003\000\000\000tag" "q\017" "K\001" "s" "t" "q\020" "R" "q\021" "h\021"
    "e" ".";

static const char expected_quantized[] =
    "\200\002" "ctorch._utils\012_rebuild_qtensor\012" "q\000" "(" "(" "X\007\000\000\000storage"
    "q\001" "ctorch\012QInt8Storage\012" "q\002" "X\001\000\000\0000" "q\003" "X\003\000\000\000cpu"
    "q\004" "K\003" "t" "q\005" "Q" "K\000" "K\003" "\205" "q\006" "K\001" "\205" "q\007"
    "ctorch\012per_tensor_affine\012" "q\010" "G\077\340\000\000\000\000\000\000" "K\003" "\207"
    "q\011" "\211" "ccollections\012OrderedDict\012" "q\012" ")" "R" "q\013" "t" "q\014" "R" "q\015"
    ".";

static const char expected_per_channel[] =
    "\200\002" "ctorch._utils\012_rebuild_qtensor\012" "q\000" "(" "(" "X\007\000\000\000storage"
    "q\001" "ctorch\012QUInt8Storage\012" "q\002" "X\001\000\000\0000" "q\003"
    "X\003\000\000\000cpu" "q\004" "K\006" "t" "q\005" "Q" "K\000" "K\003" "K\002" "\206" "q\006"
    "K\002" "K\001" "\206" "q\007" "(" "ctorch\012per_channel_affine\012" "q\010"
    "ctorch._utils\012_rebuild_tensor_v2\012" "q\011" "(" "(" "h\001" "ctorch\012FloatStorage\012"
    "q\012" "X\001\000\000\0001" "q\013" "h\004" "K\003" "t" "q\014" "Q" "K\000" "K\003" "\205"
    "q\015" "K\001" "\205" "q\016" "\211" "ccollections\012OrderedDict\012" "q\017" ")" "R" "q\020"
    "t" "q\021" "R" "q\022" "h\011" "(" "(" "h\001" "h\012" "X\001\000\000\0002" "q\023" "h\004"
    "K\003" "t" "q\024" "Q" "K\000" "K\003" "\205" "q\025" "K\001" "\205" "q\026" "\211" "h\017" ")"
    "R" "q\027" "t" "q\030" "R" "q\031" "K\000" "t" "q\032" "\211" "h\017" ")" "R" "q\033" "t"
    "q\034" "R" "q\035" ".";

static const char expected_sparse_coo[] =
    "\200\002" "ctorch._utils\012_rebuild_sparse_tensor\012" "q\000"
    "ctorch.serialization\012_get_layout\012" "q\001" "X\020\000\000\000torch.sparse_coo" "q\002"
    "\205" "q\003" "R" "q\004" "(" "ctorch._utils\012_rebuild_tensor_v2\012" "q\005" "(" "("
    "X\007\000\000\000storage" "q\006" "ctorch\012LongStorage\012" "q\007" "X\001\000\000\0000"
    "q\010" "X\003\000\000\000cpu" "q\011" "K\004" "t" "q\012" "Q" "K\000" "K\002" "K\002" "\206"
    "q\013" "K\002" "K\001" "\206" "q\014" "\211" "ccollections\012OrderedDict\012" "q\015" ")" "R"
    "q\016" "t" "q\017" "R" "q\020" "h\005" "(" "(" "h\006" "ctorch\012FloatStorage\012" "q\021"
    "X\001\000\000\0001" "q\022" "h\011" "K\002" "t" "q\023" "Q" "K\000" "K\002" "\205" "q\024"
    "K\001" "\205" "q\025" "\211" "h\015" ")" "R" "q\026" "t" "q\027" "R" "q\030"
    "ctorch\012Size\012" "q\031" "K\002" "K\002" "\206" "q\032" "\205" "q\033" "R" "q\034" "\210"
    "t" "q\035" "\206" "q\036" "R" "q\037" ".";

static const char expected_sparse_csr[] =
    "\200\002" "ctorch._utils\012_rebuild_sparse_tensor\012" "q\000"
    "ctorch.serialization\012_get_layout\012" "q\001" "X\020\000\000\000torch.sparse_csr" "q\002"
    "\205" "q\003" "R" "q\004" "(" "ctorch._utils\012_rebuild_tensor_v2\012" "q\005" "(" "("
    "X\007\000\000\000storage" "q\006" "ctorch\012LongStorage\012" "q\007" "X\001\000\000\0000"
    "q\010" "X\003\000\000\000cpu" "q\011" "K\003" "t" "q\012" "Q" "K\000" "K\003" "\205" "q\013"
    "K\001" "\205" "q\014" "\211" "ccollections\012OrderedDict\012" "q\015" ")" "R" "q\016" "t"
    "q\017" "R" "q\020" "h\005" "(" "(" "h\006" "h\007" "X\001\000\000\0001" "q\021" "h\011" "K\004"
    "t" "q\022" "Q" "K\002" "K\002" "\205" "q\023" "K\001" "\205" "q\024" "\211" "h\015" ")" "R"
    "q\025" "t" "q\026" "R" "q\027" "h\005" "(" "(" "h\006" "ctorch\012FloatStorage\012" "q\030"
    "X\001\000\000\0002" "q\031" "h\011" "K\002" "t" "q\032" "Q" "K\000" "K\002" "\205" "q\033"
    "K\001" "\205" "q\034" "\211" "h\015" ")" "R" "q\035" "t" "q\036" "R" "q\037"
    "ctorch\012Size\012" "q " "K\002" "K\002" "\206" "q!" "\205" "q\042" "R" "q#" "t" "q$" "\206"
    "q%" "R" "q&" ".";

static const char expected_nested[] =
    "\200\002" "ctorch._utils\012_rebuild_nested_tensor\012" "q\000" "("
    "ctorch._utils\012_rebuild_tensor_v2\012" "q\001" "(" "(" "X\007\000\000\000storage" "q\002"
    "ctorch\012FloatStorage\012" "q\003" "X\001\000\000\0000" "q\004" "X\003\000\000\000cpu" "q\005"
    "K\005" "t" "q\006" "Q" "K\000" "K\005" "\205" "q\007" "K\001" "\205" "q\010" "\211"
    "ccollections\012OrderedDict\012" "q\011" ")" "R" "q\012" "t" "q\013" "R" "q\014" "h\001" "("
    "(" "h\002" "ctorch\012LongStorage\012" "q\015" "X\001\000\000\0001" "q\016" "h\005" "K\002" "t"
    "q\017" "Q" "K\000" "K\002" "K\001" "\206" "q\020" "K\001" "K\001" "\206" "q\021" "\211" "h\011"
    ")" "R" "q\022" "t" "q\023" "R" "q\024" "h\001" "(" "(" "h\002" "h\015" "X\001\000\000\0002"
    "q\025" "h\005" "K\002" "t" "q\026" "Q" "K\000" "K\002" "K\001" "\206" "q\027" "K\001" "K\001"
    "\206" "q\030" "\211" "h\011" ")" "R" "q\031" "t" "q\032" "R" "q\033" "h\001" "(" "(" "h\002"
    "h\015" "X\001\000\000\0003" "q\034" "h\005" "K\002" "t" "q\035" "Q" "K\000" "K\002" "\205"
    "q\036" "K\001" "\205" "q\037" "\211" "h\011" ")" "R" "q " "t" "q!" "R" "q\042" "t" "q#" "R"
    "q$" ".";

static const char expected_storages[] =
    "\200\002" "]" "q\000" "(" "(" "X\007\000\000\000storage" "q\001" "ctorch\012FloatStorage\012"
    "q\002" "X\001\000\000\0000" "q\003" "X\003\000\000\000cpu" "q\004" "K\002" "t" "q\005" "Q" "("
    "h\001" "ctorch.storage\012UntypedStorage\012" "q\006" "X\001\000\000\0001" "q\007" "h\004"
    "K\010" "t" "q\010" "Q" "(" "h\001" "h\006" "h\007" "h\004" "K\010" "t" "q\011" "Q" "e" ".";

static const struct expected_sum storage_sums[] = {
    {12, 1212, 0x0f34258c},
};
