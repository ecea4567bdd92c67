# The codec of the wire protocol, a library of its own: server and client both stand on it, and the client
# must not need the server.
set(millrace_protocol_sources ${CMAKE_CURRENT_LIST_DIR}/protocol.c ${CMAKE_CURRENT_LIST_DIR}/protocol_changes.c
  ${CMAKE_CURRENT_LIST_DIR}/protocol_names.c)
add_library(millrace_protocol STATIC ${millrace_protocol_sources})
target_link_libraries(millrace_protocol PUBLIC millrace_options millrace_core)
set_target_properties(millrace_protocol PROPERTIES POSITION_INDEPENDENT_CODE ON)
