// tidepool/export.h - symbol visibility. Thread contract: macros.
#pragma once

#if defined(TIDEPOOL_STATIC_DEFINE)
#define TIDEPOOL_EXPORT
#else
#define TIDEPOOL_EXPORT __attribute__((visibility("default")))
#endif
