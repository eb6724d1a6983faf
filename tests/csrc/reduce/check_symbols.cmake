# Fails when an object of the AVX kernels offers the linker a symbol other than its table: a weak
# function kept from there would run on processors without those instructions.
#
#   cmake -DNM=nm -DOBJECTS=a.o;b.o -P check_symbols.cmake
set(checked 0)
foreach(object IN LISTS OBJECTS)
  if(NOT object MATCHES "/reduce/kernels_(avx[0-9]+|plain)\\.cpp")
    continue()
  endif()
  set(table kernels_${CMAKE_MATCH_1})
  execute_process(
    COMMAND ${NM} --defined-only --extern-only --demangle ${object}
    OUTPUT_VARIABLE symbols OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(NOT symbols MATCHES "^[0-9a-f]+ [A-Z] pycomm::${table}$")
    message(FATAL_ERROR "${object} defines more than pycomm::${table}:\n${symbols}")
  endif()
  math(EXPR checked "${checked} + 1")
endforeach()
if(checked EQUAL 0)
  message(FATAL_ERROR "no kernel object found in: ${OBJECTS}")
endif()
message(STATUS "${checked} kernel objects define nothing but their table")
