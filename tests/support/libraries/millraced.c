/* A libmillraced of another version, of which nothing else may be looked at. */
const struct {
    const char *version;
} millraced_embedded = {"9.9.9-other"};
