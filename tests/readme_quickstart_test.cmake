# The README shows examples/quickstart/main.cc word for word, and it stays short: the ```cpp block
# after the line <!-- quickstart -->.

set(max_lines 60)

file(READ ${SOURCE_DIR}/examples/quickstart/main.cc example)
file(READ ${SOURCE_DIR}/README.md readme)

set(opening "<!-- quickstart -->\n```cpp\n")
string(FIND "${readme}" "${opening}" begin)
if(begin EQUAL -1)
  message(FATAL_ERROR "README.md has no ```cpp block right after a line <!-- quickstart -->")
endif()
string(LENGTH "${opening}" length)
math(EXPR begin "${begin} + ${length}")
string(SUBSTRING "${readme}" ${begin} -1 shown)
string(FIND "${shown}" "\n```" end)
if(end EQUAL -1)
  message(FATAL_ERROR "README.md: the quickstart's code block is never closed")
endif()
math(EXPR end "${end} + 1")
string(SUBSTRING "${shown}" 0 ${end} shown)

if(NOT shown STREQUAL example)
  message(FATAL_ERROR "README.md's quickstart differs from examples/quickstart/main.cc")
endif()
string(REGEX MATCHALL "\n" newlines "${example}")
list(LENGTH newlines lines)
if(lines GREATER max_lines)
  message(FATAL_ERROR "the quickstart has ${lines} lines; at most ${max_lines} are allowed")
endif()
message(STATUS "the README shows all ${lines} lines of the quickstart")
