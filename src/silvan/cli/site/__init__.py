"""Commands of ``silvan site``, in the order of a site's life: it joins, takes part in studies, keeps its records."""
