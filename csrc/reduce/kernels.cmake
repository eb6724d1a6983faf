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

# Sanitizers add symbols of their own, link-time optimisation leaves none to look at.
if(PYCOMM_TESTS AND PYCOMM_SANITIZE STREQUAL "" AND NOT CMAKE_INTERPROCEDURAL_OPTIMIZATION)
  add_test(
    NAME reduce.symbols
    COMMAND ${CMAKE_COMMAND} -DNM=${CMAKE_NM} "-DOBJECTS=$<TARGET_OBJECTS:pycomm_core>"
            -P ${PROJECT_SOURCE_DIR}/tests/csrc/reduce/check_symbols.cmake)
  set_tests_properties(reduce.symbols PROPERTIES LABELS unit TIMEOUT 120)
endif()
