# Flags of the reduction loops: one source per instruction set over the same headers.
#
# Contraction to fused multiply-add would make the results depend on the instruction set.
set(kernel_dir ${PROJECT_SOURCE_DIR}/csrc/reduce)
set_source_files_properties(
  ${kernel_dir}/kernels_plain.cpp PROPERTIES COMPILE_OPTIONS "-ffp-contract=off")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set_source_files_properties(
    ${kernel_dir}/kernels_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "-ffp-contract=off;-mavx2;-mf16c")
  set_source_files_properties(
    ${kernel_dir}/kernels_avx512.cpp PROPERTIES
    COMPILE_OPTIONS
    "-ffp-contract=off;-mavx2;-mf16c;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
endif()
